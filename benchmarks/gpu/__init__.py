"""What one device of PyTorch does: its rates, farflung's codecs on it, and its numbers beside the CPU's."""
