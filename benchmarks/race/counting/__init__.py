"""Counting the steps to the target, without a network (`python -m benchmarks.race.count`)."""
