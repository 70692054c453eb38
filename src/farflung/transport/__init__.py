"""Bytes between holders: identity (certificates, tokens), frames, links and the endpoints that make them.

`endpoint` dials, listens and asks; `link` is what it gives back; `headers` say what crosses it.
"""
