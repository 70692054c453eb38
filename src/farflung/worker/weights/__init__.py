"""Weights that training does not change: kept on disk by their digests, and fetched from where they lie."""
