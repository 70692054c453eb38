"""Numbers as bytes: floats, integers, indices, entropy coding, random bits."""
