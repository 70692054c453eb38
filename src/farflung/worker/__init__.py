"""The worker: a process that offers one device to a broker and runs segments on it.

service
    A worker from its start to its end: its port, and its session with the broker.
driver
    Links to peers, the threads and the disk, and what of them carries out which command.
state, records, registering
    The pure state machine that decides what the driver does; its state; what it does about its broker.
options
    What the owner offers and allows.
measuring, device_watch
    How fast the device is, at the start and again while it is idle, and whether it is stuck.
compute, loading, task_deadlines
    The compute thread, the segments it runs, and how long each task may take.
codec_thread
    Encodes and decodes what crosses links while the compute thread computes.
peers, pending_links, admission, state_receiver
    Sessions with other workers and the submitter, and which messages they may send.
routes
    How peers reach this worker and how it reaches them.
probing, link_probe
    The worker's part in a survey of the fleet's links.
traffic_meter
    Bytes sent and rates received per step.
"""
