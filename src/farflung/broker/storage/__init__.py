"""What a broker must remember, behind one class.

- `store`: `Store`: event log and log snapshots, blobs, measurements, tokens and certificates, in one SQLite
  file.
- `copies`: a copy of the store with other files in one file: a backup.
- `contract`: `BrokerStore`: what the broker needs of a store, and the records in it.
- `database`: opens, checks and migrates the file, and locks its folder.

No SQL leaves this package. Another database can take SQLite's place if its `BrokerStore` promises the same:

- What a call wrote is there after a crash of the process or the machine, once the call has returned.
- `append` and `transaction` write everything or nothing. No reader finds an event without the blobs that came
  with it.
- `events` gives the log in the order in which calls of `append` returned, and never one with a hole.
- A log snapshot is written with the events that it stands for, or not at all. The two newest are kept, and
  the events that both cover are deleted with the same call.
- One broker at a time owns a store, the one that opened it last; tokens may be added beside it.
- Threads may share it. A call may wait for a disk or a network, so an event loop leaves it to a thread.
- Events, snapshots, blobs and measurements are bytes, which the store does not read.
- What cannot be written or read raises StoreError, in one line for the person who runs the broker.
"""
