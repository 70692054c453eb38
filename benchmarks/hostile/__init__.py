"""What one attacker at a time costs a fleet that trains: `python -m benchmarks.hostile`."""
