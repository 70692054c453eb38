"""What broker, workers and submitters say to each other: message structs and their encoding, no I/O."""
