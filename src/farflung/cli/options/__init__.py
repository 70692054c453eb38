"""Options that several commands share.

job
    The job file, and the options that override its values.
codecs
    `--codec`.
planning
    Topology, scheduler and the efficiency of devices.
checkpoints
    When and where checkpoints are saved, and which run to resume.
relaying
    `--relay`.
target
    Where `farflung train` trains: on local workers or on a broker's.
"""
