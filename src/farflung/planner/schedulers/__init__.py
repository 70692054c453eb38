"""The schedulers that `planner.registry` names; each is imported when it is first used."""
