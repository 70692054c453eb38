"""Optimizers and schedules as a job declares them, what is kept of a parameter, and its memory."""
