"""The live page of a fleet, which `farflung broker --web` serves.

curves
    `Curves`: the losses of jobs over time, from one status after another.
feed
    `Feed`: one picture of the fleet a second, for all viewers together.
prometheus
    The same for Prometheus.
server
    HTTP: the page, its files, the API and the stream of events.
"""
