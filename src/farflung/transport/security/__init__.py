"""Who is who: certificates, identities, join tokens, and how a newcomer joins a broker."""
