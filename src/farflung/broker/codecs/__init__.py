"""Choose the codecs of a running job from what its links and losses show."""
