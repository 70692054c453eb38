"""Measure latency and bandwidth of a path, actively and from passing traffic."""
