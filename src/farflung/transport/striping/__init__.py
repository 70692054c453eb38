"""Spread one link over several TCP connections (stripes)."""
