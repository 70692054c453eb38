"""Members that operators have removed, and workers that made attempts of jobs fail."""
