"""Train in a lab: layout, fleet, submitter and report."""
