"""Submit a job, feed it, follow it, and bring the trained weights home."""
