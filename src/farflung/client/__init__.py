"""The submitter: the process that owns a model and its data, and trains it on a broker's workers.

api
    What users import: `Job`, `load_job`, `plan` and `simulate`.
capture
    Capture a job's model as an OP-DAG and compare it with the eager module.
run
    Submit a job, stream its inputs to the workers, follow it, and receive the trained weights.
output
    The run folder: metrics, checkpoints, the exported weights and the summary.
"""
