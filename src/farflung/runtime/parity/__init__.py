"""Compare a captured model with the eager module: one microbatch, or whole steps of a cut model."""
