"""The emulated device: takes as long as a real one, sends bytes of the right size, and computes nothing."""
