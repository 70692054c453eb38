"""Codecs in plans: `policies` choose one for each link, `planned` plans with what they will save."""
