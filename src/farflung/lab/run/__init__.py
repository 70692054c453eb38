"""Train in a lab (`farflung lab run`).

run
    A whole run, from an empty machine to a report.
layout, fleet, submitter
    Which node runs what; the processes of broker and workers; the submitter's process.
emulation
    Emulated devices, and how far a topology is slowed down for them.
report
    `lab.json`: what a lab did during a run.
"""
