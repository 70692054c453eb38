"""What follows when a worker, a link or the broker is lost."""
