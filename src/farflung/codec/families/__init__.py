"""The codec families, one a file: what travels instead of a tensor."""
