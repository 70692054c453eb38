"""The submitter: the process that owns a model and its data, and trains it on a broker's workers.

api
    What users import: `Job`, `Fleet`, `Run`, `check`, `plan` and what they need.
options
    What is asked of a run, read and checked.
beginning
    All that comes before a run: identity, workers, the run to resume, the captured model.
capture
    Capture a job's model as an OP-DAG and compare it with the eager module.
run
    Submit a job, stream its inputs to the workers, follow it, and receive the trained weights.
output
    The run folder: metrics, checkpoints, the exported weights and the summary.
"""
