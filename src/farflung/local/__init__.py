"""This machine: a broker and workers as child processes, and what may be wrong with it."""
