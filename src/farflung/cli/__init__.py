"""The command line: thin typer commands, one file a group; what they need is imported when they run."""
