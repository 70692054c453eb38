"""The broker as a pure state machine: events in, facts and commands out. No sockets, clocks or files.

- `state`: the entry points `decide` (one event) and `replay` (the stored log).
- `events`: events that go in and commands that come out.
- `facts`: changes of the state, and which of them are stored.
- `records`: the state as data (`State`, `Worker`, `Job`).
- `blobs`: large bytes that facts and state name by their digest.
- `reducer`: applies a fact to the state.
- `transition`: collects facts and commands while one event is decided.
- `overdue`: when a job without progress is given up; `late_versions`: when copies of its state are.
- `jobs`: the life of a job. `units`: the end of a unit. `commit`: the step commit.
- `log_lines`: a log line for each stored fact.
"""
