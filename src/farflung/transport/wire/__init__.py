"""What one connection carries: frames and the headers of data."""
