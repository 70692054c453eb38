"""The compute and codec threads, and the job that runs on them."""
