"""Jobs from the queue to their end: loads, units, the step commit, submitters and checkpoints."""
