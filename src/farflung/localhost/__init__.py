"""This machine: run a fleet of local processes, and diagnose problems.

local
    `farflung.local`: such a fleet for a Python program or `farflung train --local`.
fleet
    A broker and workers as child processes.
child_process
    Start, watch and reap one child process.
forkserver, forkserver_process
    A process that has imported a framework and forks workers, as its parent and as the process itself see it.
parent_watch, memory
    End a child with its parent, and divide the machine's memory among workers.
doctor, findings
    The checks of `farflung doctor`, and what they report.
"""
