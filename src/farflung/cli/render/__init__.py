"""What commands print.

output
    Results on standard output, notes and errors on standard error.
tables
    Plain tables for terminals and pipes.
live, progress
    A run's progress on a terminal (`live`), or as plain lines (`progress`).
plan, forecast, timeline
    A plan, what it is expected to take, and a picture of one step.
run_report
    What is printed before and after a training run.
status, topology
    A broker's status, and the workers and links of a topology.
"""
