"""What a broker must remember, behind one class.

- `contract`: `BrokerStore`: what the broker needs of a store, and the records in it.
- `sql`: `SqlStore`: event log and log snapshots, blobs, measurements, tokens and certificates, as statements
  for any SQL database.
- `store`: `Store`: in one SQLite file, which `database` opens, checks and migrates.
- `postgres`: `PostgresStore`: in a PostgreSQL database, whose tables `postgres_schema` makes. Its connection
  is made again when it breaks (`server_connection`); no message shows its password (`server_address`).
- `opening`: which of the two a broker's folder has. `ownership`: the lock on that folder.
- `copies`: a copy of the store with other files in one file: a backup.

No SQL leaves this package. All stores promise the same:

- What a call wrote is there after a crash of the process or the machine, once the call has returned.
- `append` and `transaction` write everything or nothing. No reader finds an event without the blobs that came
  with it.
- `events` gives the log in the order in which calls of `append` returned, and never one with a hole.
- A log snapshot is written with the events that it stands for, or not at all. The two newest are kept, and
  the events that both cover are deleted with the same call.
- One broker at a time owns a store, the one that opened it last; tokens may be added beside it. A second one
  is refused while the first lives: it holds the lock on its folder, or renews its lease in the database.
- Threads may share it. A call may wait for a disk or a network, so an event loop leaves it to a thread.
- Events, snapshots, blobs and measurements are bytes, which the store does not read.
- What cannot be written or read raises StoreError, in one line for the person who runs the broker.
"""
