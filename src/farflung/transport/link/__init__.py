"""A link between two holders: what it sends and receives, its rate and health; sessions over links."""
