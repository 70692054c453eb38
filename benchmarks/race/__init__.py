"""The race: farflung beside `torch.distributed` on the same emulated network (`benchmarks/wan.py`)."""
