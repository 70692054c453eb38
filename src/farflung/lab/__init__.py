"""Emulated networks on one Linux machine.

network, running_lab
    `Network` starts a lab; `RunningLab` reaches and changes one that runs.
spec
    What a lab consists of: nodes, links, addresses.
registry, machine
    The labs that run on this machine, and whether it can run one.
switch
    The process that forwards packets between a lab's namespaces.
testbeds
    The topologies that ship with farflung.
run, measure
    Train in a lab (`farflung lab run`), and measure its links (`farflung lab calibrate`).
"""
