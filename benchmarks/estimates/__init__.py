"""What `benchmarks/estimator.py` is made of: its models, its measurements of time and of memory."""
