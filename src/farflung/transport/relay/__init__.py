"""Carry encrypted links between two peers who cannot reach each other."""
