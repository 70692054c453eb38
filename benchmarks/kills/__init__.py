"""Workers of farflung and replica groups of torchft are killed, one at a time: the parts of `recovery.py`."""
