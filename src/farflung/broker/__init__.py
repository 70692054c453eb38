"""The broker: keeps membership, queues jobs, asks for plans and commits steps.

The decisions are a pure state machine (`core`); everything else moves bytes to and from it.

- `service`: the broker process (`serve`, `BrokerService`); owns the listener, the store and the survey.
- `dispatcher`: orders what arrives, asks the state machine, stores its decisions, then sends commands.
- `journal`: recovers the state from the log, and stores decisions and log snapshots.
- `backup`: a broker in one file, and a folder made of it again.
- `connections`: the open connections, and the session that each carries.
- `sessions`: one holder's control session (`HolderSession`) and who owns which (`SessionRegistry`).
- `viewers`: answers those who only look; `operators`: those who manage members.
- `status`: what `farflung status` shows.
- `core`: state, events, facts and commands. No I/O.
- `codecs`: changes codecs while a job runs.
- `network`: worker addresses, reachability of peers, relays, link reports.
- `planning`: runs the planner in its own process.
- `security`: certificates and join tokens.
- `storage`: the SQLite file behind it all.
- `survey`: measures links between idle workers.
"""
