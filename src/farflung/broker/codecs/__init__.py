"""Change the codecs of a running job: codec tuning (`auto`) and codec phases.

- `tuning`: the broker's part in both; called by the state machine when a unit is decided.
- `tuning_state`: the state of a job's codec tuning.
"""
