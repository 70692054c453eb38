"""Links to other members: dialled, metered, probed, and what they bring."""
