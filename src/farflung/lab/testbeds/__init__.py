"""Topologies that ship with farflung, by name: a JSON file each, made by `rules`.

docs/testbeds.md explains them.
"""
