"""`Frontend`: how what runs a training shows what happens around it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from farflung.client.output.progress import Observer, ProgressCallback

if TYPE_CHECKING:
    from farflung.client.capture.prepared import Prepared
    from farflung.client.output.run_folder import RunFolder

log = logging.getLogger("farflung")


class Frontend:
    """Shows what a user should know; this one is a library's, which logs it to `farflung`.

    Python prints warnings of loggers, and notes only if logging is set up for level INFO. The command line
    has another frontend, which prints both.
    """

    def note(self, words: str) -> None:
        """Something good to know."""
        log.info(words)

    def warn(self, words: str) -> None:
        """Something that needs attention."""
        log.warning(words)

    @contextmanager
    def reading(self) -> Iterator[ProgressCallback]:
        """The job is loaded in this block, which may take seconds."""
        yield self._note_changes()

    @contextmanager
    def capturing(self) -> Iterator[ProgressCallback]:
        """The model is captured in this block, which may take a minute."""
        yield self._note_changes()

    def _note_changes(self) -> ProgressCallback:
        """Note each stage that is told, once if it is told again."""
        said = ""

        def tell(words: str) -> None:
            nonlocal said
            if words != said:
                said = words
                self.note(words)

        return tell

    def observer(self, prepared: Prepared, run: RunFolder) -> Observer:
        """What follows a run that now begins in a folder."""
        return LoggedWords()


class LoggedWords(Observer):
    """Logs the notes and warnings of a run."""

    def noted(self, words: str) -> None:
        log.info(words)

    def warned(self, words: str) -> None:
        log.warning(words)
