"""Measure a lab with plain traffic."""
