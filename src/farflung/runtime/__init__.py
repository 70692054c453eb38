"""What runs a segment: forward, backward, seeds, optimizer, snapshots; torch only in `torch_backend`."""
