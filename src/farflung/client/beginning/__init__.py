"""What comes before a run: an identity, the workers it names, the run to resume, and the captured model.

joining
    Find or obtain the identity with which this process speaks to its broker.
worker_check
    Check that the workers a run names have joined its broker.
source
    Where the job comes from: a file, or a Python program.
standing
    Whether the job of the run to resume still stands at the broker.
run_start
    Begin in a new folder, or from the newest checkpoint.
capturing
    Capture the model, and check that the workers asked for can train it.
"""
