"""The log of a broker or worker."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from farflung.cli.process import service


@pytest.fixture
def loggers() -> Iterator[tuple[logging.Logger, logging.Logger]]:
    """The root logger and ours, which are left as they were."""
    both = (logging.getLogger(), logging.getLogger("farflung"))
    before = [(one, list(one.handlers), one.level, one.propagate) for one in both]
    yield both
    for one, handlers, level, propagates in before:
        one.handlers[:], one.propagate = handlers, propagates
        one.setLevel(level)


def test_a_line_is_printed_once_whatever_a_library_does_to_the_root_logger(
    loggers: tuple[logging.Logger, logging.Logger], capsys: pytest.CaptureFixture[str]
) -> None:
    root, _ = loggers
    root.handlers.clear()

    async def serve() -> None:
        logging.info("as a library may, which gives the root logger a handler")
        logging.getLogger("farflung.worker").info("worker a listens")

    service.run_service(serve(), as_json=False)
    assert capsys.readouterr().err.count("worker a listens") == 1
