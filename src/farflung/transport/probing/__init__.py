"""Measure the latency and bandwidth of paths and access lines."""
