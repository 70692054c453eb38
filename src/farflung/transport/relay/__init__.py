"""Relays pass encrypted links on between two peers that cannot reach each other."""
