"""Copies of a job's state: versions on workers' disks, who holds them, and what was decided since."""
