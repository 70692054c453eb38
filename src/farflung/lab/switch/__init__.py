"""The process of a lab: its network namespaces and the user-space switch between them.

process
    The switch's process: bring a lab up, serve it, take it down.
switch, fabric, shaper
    Forward packets; which node has which address; when a packet arrives or is lost.
tun, namespaces
    Network devices and namespaces.
control, control_server, stats
    Requests to a running switch, and its counters.
"""
