"""Plan jobs in a separate process, so that a large or hostile graph cannot stop the broker."""
