"""Inputs for every op of the opset, for tests and benchmarks to run on each backend."""
