"""Emulated networks on one machine (Linux): the switch, the shipped testbeds, and training in them."""
