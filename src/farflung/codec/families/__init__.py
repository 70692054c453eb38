"""The codec families, one per file."""
