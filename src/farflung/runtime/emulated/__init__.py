"""A device that takes its time and sends bytes of the right size, and computes nothing."""
