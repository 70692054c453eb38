"""The broker's certificates and join tokens.

- `authority`: `Authority` issues and renews certificates, and creates join tokens.
- `authority_key`: its private key on disk, plain, encrypted by a passphrase, or kept apart.
- `rotation`: another key for it, and a time in which members trust both.
- `scopes`: which jobs a viewer may see.
- `signing`: certificates as it signs them.
- `tokens`: lists and revokes join tokens.
"""
