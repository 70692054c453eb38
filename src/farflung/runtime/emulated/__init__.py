"""The emulated device: as slow as a real one, with messages of the right size, and no computation."""
