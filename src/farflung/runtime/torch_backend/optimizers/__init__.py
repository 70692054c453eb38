"""The declared optimizers on PyTorch."""
