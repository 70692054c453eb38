"""What users import.

job
    `Job`: a model, its data, and how it is trained.
load
    Run a job file and return the `Job` that it declares.
planning
    `plan` a job on a fleet that need not exist, and `simulate` a plan on a topology.
"""
