"""A run as one HTML page, which needs neither network nor broker.

recorded
    `RecordedRun`: what a run folder holds, also of a run that was cut off.
happenings
    The events of a run in words.
account
    Where a run's time went.
curves
    A few points of long curves.
document
    The data of a page.
page
    The page itself.
notebook
    The same in a notebook.
"""
