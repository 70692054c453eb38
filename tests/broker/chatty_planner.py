"""The broker's planner, which says at each plan how far it is."""

from __future__ import annotations

from farflung.broker.planning import process

if __name__ == "__main__":
    process.PROGRESS_SECONDS = 0.0
    process.main()
