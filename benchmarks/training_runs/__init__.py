"""Three whole trainings over four workers (docs/measurements/training-runs.md): what their pages say of them.

baselines
    What simpler models reach on the same data.
one_process
    The first steps of a run again, in one process with eager PyTorch.
curves
    What a run folder says of losses and metrics by step.
chart
    The same as a picture.
"""
