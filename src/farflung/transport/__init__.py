"""Bytes between holders: identity (certificates, tokens), frames, links and the endpoints that make them.

`endpoint` dials, listens and asks; `link` is what it gives back; `headers` say what crosses it. A link has
one `stripe` or several (`stripes`, `width`), over which its `sender` writes what its `outbox` gives out.
"""
