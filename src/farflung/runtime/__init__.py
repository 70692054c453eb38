"""Run segments: forward and backward passes, optimizer, snapshots. Frameworks are imported only by backends.

backend
    The interface that every backend implements.
torch_backend, jax_backend, emulated
    The backends: PyTorch, JAX, and devices that only take time.
frameworks
    Choose a backend by name.
executor, training, parcel, clipping
    Run the tasks of a worker's segments, the training settings, what segments send each other, and the norm
    of all gradients.
coding, link_book, row_keys, sample
    Apply codec pairs to a worker's links.
footprint, indices, optimizer
    Estimate a segment's memory, check indices in the data, declare optimizers.
in_process, parity
    Run a whole plan in one process, and compare it with eager training.
"""
