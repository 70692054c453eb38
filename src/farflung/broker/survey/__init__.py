"""Measure the links between idle workers and turn the results into a topology."""
