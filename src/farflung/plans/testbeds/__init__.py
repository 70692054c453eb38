"""Topologies that ship with farflung, by name: a JSON file each, made by `farflung.lab.testbeds.rules`.

docs/testbeds.md explains them.
"""
