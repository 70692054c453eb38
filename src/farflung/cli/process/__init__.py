"""The process around a command.

capture
    Capture the model of a job to train, and print what the user should know about it.
identity
    The identity that a command uses, and how a token becomes one.
interrupts
    Ctrl-C while an event loop runs, and torch's output on stderr.
service
    Run a broker or a worker until it is stopped.
worker_check
    Join a broker to train there, and check that the workers a run names have joined it, too.
"""
