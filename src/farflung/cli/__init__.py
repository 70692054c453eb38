"""The command line, made with typer. Commands are thin and import what they need when they run.

main
    The app, and the one place where an error becomes a message and an exit code.
commands
    One file for each command.
options
    Options that several commands share.
process
    The process around a command: its identity, signals, long-running services.
render
    What commands print: tables, reports, progress.
"""
