"""Pages for a browser.

report
    A run as one HTML file, which needs neither network nor broker.
live
    The page of a fleet, which its broker serves.
static
    Their scripts and styles, which no tool builds. uPlot (MIT licence) draws the curves.
"""
