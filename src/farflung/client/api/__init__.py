"""What users import.

job
    `Job`: a model, its data, and how it is trained.
load
    Run a job file and return the `Job` that it declares.
fleet, connect
    `Fleet`: workers to train on; `connect` finds those of a broker (`farflung.localhost.local` starts some).
run
    `Run`: what a program does with a run that goes on beside it.
metrics, callbacks
    What a run tells the program: live rows, and calls of the program's functions.
checking
    `check` and `capture` a model on this machine alone.
planning
    `plan` a job on a fleet that need not exist, and `simulate` a plan on a topology.
execution, loop_thread
    The run itself, on the fleet's event loop, which has a thread of its own.
frontend, interrupts, wording
    How a program shows what happens, Ctrl-C, and errors in the words of Python.
"""
