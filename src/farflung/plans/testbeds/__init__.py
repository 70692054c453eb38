"""Topologies that ship with farflung, by name: a JSON file each, made by `benchmarks/testbeds/rules.py`.

docs/reference/topologies.md explains them.
"""
