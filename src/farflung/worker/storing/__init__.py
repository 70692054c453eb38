"""Copies of state on this worker's disk, its own and those of others."""
