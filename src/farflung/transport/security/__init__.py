"""Certificates, identities, join tokens, and how holders join a broker."""
