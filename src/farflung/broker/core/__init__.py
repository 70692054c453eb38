"""The broker as a pure state machine: events in, facts and commands out. No sockets, clocks or files."""
