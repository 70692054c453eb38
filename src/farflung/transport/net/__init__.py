"""Sockets, TLS streams and addresses."""
