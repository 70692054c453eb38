"""Certificates, identities, join tokens, and how a newcomer joins a broker."""
