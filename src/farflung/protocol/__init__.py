"""Control messages between broker, workers and submitters, and the session that carries them to the broker.

- `messages`: which role may send which messages, and how they are encoded.
- `fields`: the base of all messages, and field types with bounds.
- `worker`, `submitter`, `viewer`: messages between the broker and each role.
- `registration`: how a worker registers. `traffic`: what links carried.
- `sessions`: the first messages of a connection.
- `reachability`: how two members of a plan reach each other. `probing`: how links are measured.
- `broker_session`: a holder's control session with its broker (`BrokerSession`), and certificate renewal.
"""
