"""What is asked of a run, as a command line or a Python call says it, read and checked.

asked
    All of it: `ask` reads the options of a run.
resuming
    The run to resume, and which options it keeps.
target, planning, codecs
    Where to train, and how to plan.
checkpoints, durations
    When to save, and how long to wait.
overrides
    `--set`: values that replace those of a job.
"""
