"""Topologies that ship with farflung, by name: a JSON file each, made by `benchmarks/testbeds/rules.py`.

docs/testbeds.md explains them.
"""
