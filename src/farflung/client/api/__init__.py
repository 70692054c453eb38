"""What a user calls: declare a job, load it from a file, plan and simulate it."""
