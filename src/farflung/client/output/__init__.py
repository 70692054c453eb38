"""What a run shows and keeps: progress, metrics, the run folder and weights."""
