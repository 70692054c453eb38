"""Measure the links between idle workers and turn the results into a topology.

- `service`: `SurveyService` starts surveys when a fleet is idle, and answers questions about them.
- `plan`: which pairs and access lines to measure, and how many bytes that may take.
- `machine`: a survey as a pure state machine.
- `results`: from the members' answers to measurements.
- `measurements`: measurements of links and access lines, and how they are stored.
- `passive`: measurements from training traffic.
- `paths`: helps two members of a survey that cannot reach each other.
- `topology`: the topology that follows from measurements, with defaults for the rest.
"""
