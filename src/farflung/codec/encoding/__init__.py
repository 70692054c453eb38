"""How numbers become bytes.

payload     Parts of a payload, a reader that checks bounds, and small integers packed into bytes. floats,
indices, integer_coding, zstd     Floating-point arrays, positions, entropy-coded integers, and zstandard.
noise     Random signs and dither from a seed.
"""
