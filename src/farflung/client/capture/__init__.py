"""Capture the model of a job, and compare it with the eager module, before anything is submitted.

check
    Compare the captured graph, and a cut and trained copy of it, with the eager module.
prepared
    `Prepared`, a job ready to submit, and `Model`, a job's model as planners see it.
report
    What `farflung capture` and `farflung check` report.
"""
