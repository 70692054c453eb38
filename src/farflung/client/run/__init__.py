"""One run of one job: submit it, stream its inputs, follow it, and receive the trained weights.

submitter
    `train`, and the event loop of a run.
attempts
    What the submitter does for the current attempt, from its plan to its end.
attempt
    One attempt: sessions with all workers of a plan, and what flows over them.
worker_session
    The session with one worker, which survives lost links.
broker_client
    The control session with the broker, and single queries to it.
feeder, microbatches
    Load microbatches and stream them to the segments that read inputs.
returns
    How a run finds back to its job after the broker, or links to workers, were lost.
state_saver
    Take in the state that workers send, and save it.
state_transfer
    Send the model's state to the workers, and collect it after the last step.
events
    Events of a run, and the background tasks that cause some of them.
"""
