"""Workers that join, leave in good order, and give a job a better plan."""
