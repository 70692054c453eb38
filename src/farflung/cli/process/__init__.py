"""The process around a command.

identity
    The identity that a command uses, and how a token becomes one.
interrupts
    Ctrl-C while an event loop runs, and torch's output on stderr.
service
    Run a broker or a worker until it is stopped.
training
    What `farflung train` prints of a run, and which signals it heeds.
"""
