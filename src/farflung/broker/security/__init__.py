"""The broker's certificates and join tokens.

- `authority`: `Authority` issues and renews certificates, and creates join tokens.
- `tokens`: lists and revokes join tokens.
"""
