"""FusionLLM's baselines: as many operators (`equal_count`) or FLOPs (`equal_compute`) for every worker.

What both do, and DT-FM's scheduler after its search, is in `even_shares`.
"""
