"""The process around a command: identity, signals, long-running services."""
