"""Checkpoints: all that a run needs to go on from a step, as files in a folder or an object store.

record
    `checkpoint.json`: which step of which run a checkpoint holds, and its files.
identity
    What identifies a run, so that a checkpoint of another one is refused.
store
    `CheckpointStore`: save, find and load checkpoints.
contents
    What is saved, and how it becomes files and comes back.
places
    Where checkpoints are kept: a folder, or an object store (`object_store`).
"""
