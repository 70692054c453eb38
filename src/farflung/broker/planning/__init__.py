"""Plan jobs in a separate process, so that a large or hostile graph cannot stop the broker.

- `client`: the broker's side: `plan` starts the process, asks it and limits its time.
- `process`: the planner's side, run as `python -m farflung.broker.planning.process`.
- `programs`: what workers get of a plan.
- `messages`: what the two say to each other.
- `fair_lock`: one planner at a time, and a fair order among submitters.
"""
