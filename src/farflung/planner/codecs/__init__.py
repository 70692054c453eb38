"""Codecs in plans: `policies` choose a codec pair for each link and plan with what it saves."""
