"""Words about some jobs for one who may see these alone: other workers and jobs in them lose their names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

WORKER, JOB = "another worker", "another job"


def veil(workers: Iterable[str], jobs: Iterable[str]) -> Callable[[str], str]:
    """What puts "another worker" and "another job" where words name one of these."""
    instead = {**dict.fromkeys(workers, WORKER), **dict.fromkeys(jobs, JOB)}
    if not instead:
        return lambda words: words
    longest_first = sorted(map(re.escape, instead), key=len, reverse=True)
    names = re.compile(rf"(?<![\w-])({'|'.join(longest_first)})(?![\w-])")
    return lambda words: names.sub(lambda found: instead[found[1]], words)
