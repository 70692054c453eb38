"""The architectures that `benchmarks/coverage.py` tries, as the libraries' own registries list them.

case
    `Case`, an architecture by name, and `Subject`, a small model of it with inputs.
timm_models
    The smallest variant of each of timm's modules.
transformers_models
    Each class of transformers' auto mappings, with a shrunk configuration.
shrinking
    The rule that shrinks a configuration.
"""
