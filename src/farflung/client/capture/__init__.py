"""Capture the model of a job and compare it with the eager module before anything is submitted."""
