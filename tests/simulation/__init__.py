"""A deterministic simulation of a whole fleet, to find out what faults do to the state machines.

The real machines run (`broker.core`, `worker.state`, with the broker's registry of sessions); clock, network,
disk, computation and users are virtual. One seed gives one world, always the same. Nothing sleeps and nothing
is a thread, so a world of 2,000 events takes a tenth of a second.

What is real and what is modelled
---------------------------------
- `world`: clock, heap of events, processes that die, start, freeze and thaw; the trace of a failure.
- `network`, `ends`: sessions that resume or expire with the lease, cut, slow and reset paths.
- `broker`, `store`, `planner`: the dispatcher's groups (decide, store, act), a crash between any of these and
  between any two commands, the real journal with log snapshots and a replay from bytes, and random plans.
  Facts of one group are stored all or none, as SQLite does.
- `worker`, `compute`: `worker.driver`, its data links, and a compute thread whose calls take random times.
- `submitter`, `runs`: `client.run`, with users who stop runs, ask for copies, and go on from what is on disk.
- `stranger`: a holder of valid certificates that says things about the jobs of others.
- `parcels`, `model`: what travels between members, and what is computed. A state is the list of units that
  were applied to it; each gradient and loss follows from it, at any cut, as training promises.
- `faults`: what can happen, how it is drawn, how it strikes. `fleet`: everything together; after some faults
  a fleet must come to rest. `campaign`: many worlds.

Laws
----
- `log_laws` judges each stored fact by a ledger of its own: no unit is decided twice in an attempt, units
  come in order and with the outcome that a fleet without faults has, one copy is under way at most and begins
  when it is due, an ended job stays ended, a replay gives back the state that was lost, blobs are stored as
  long as they are needed.
- After a rollback a job goes on exactly at its newest stored copy, in an attempt with the next number. It
  ends after so many fruitless attempts in a row as `recovery` says, and not before.
- `laws` holds after each event: no worker is held by two jobs, workers apply what the log says, once and in
  order; copies and final states are those of a fleet without faults; only a stranger is ever refused; no
  machine raises anything but ProtocolError.
- `Fleet.rest`: when faults stop, each job ends, or waits for what its words name, and its workers are free.
  Only a lease may end an attempt of correct members: one that the last deadline (`overdue`) ended was stuck.
  When faults have stopped for a while, no job fails that the workers could run.

Use
---
- `python -m tests.simulation --seed 7 --events 2000` repeats a world. A failure prints this line and the last
  events.
- `python -m tests.fuzz --documents 0 --payloads 0 --frames 0` simulates a million events.

To grow
-------
A new kind of fault: a name in `faults.KINDS` and a case in `strike`. A new fact: a case in
`LogLaws._judge`; a new command of a worker: a case in `WorkerProcess._carry_out`. A new actor: a `Process`
with `on_message`, `on_back` and `on_end`. For each promise plant a bug that breaks it (`test_planted_bugs`,
`recovery_bugs`).
"""
