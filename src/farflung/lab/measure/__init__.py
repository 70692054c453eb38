"""Measure a lab with plain traffic (`farflung lab calibrate`).

calibration
    Compare measured rate, latency and loss of links with their settings.
flow, traffic
    Send and receive the traffic in a node, and run it from outside.
"""
