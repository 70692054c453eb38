"""What a child process does when its parent is gone: it stops, and nothing of the family stays behind."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

from farflung.transport.timeouts import Timeouts

LOOK_SECONDS = 0.01


def stop_with_parent(folder: Path) -> None:
    """Watch standard input, a pipe whose other end only the parent holds, from a thread.

    When it closes, this process gets SIGTERM, and is ended if it takes too long. `folder`, which a parent
    that was killed could not remove, is removed at once, as others may end this process sooner, and again at
    the end: by each child, since one that still starts may make it again.
    """
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch, args=(folder,), name="farflung-parent", daemon=True).start()


def _watch(folder: Path) -> None:
    while os.read(0, 1024):
        pass
    atexit.register(_remove_last, folder)
    _remove(folder)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(Timeouts().stop_seconds)
    _remove(folder)
    os._exit(1)


def _leave(number: int, frame: FrameType | None) -> None:
    # The default action would skip what is to be done at exit.
    sys.exit(128 + number)


def _remove_last(folder: Path) -> None:
    """Once nobody else is at work here, or `_watch` has waited long enough.

    SIGTERM interrupts the start of a thread, too; for that one the interpreter does not wait, although it may
    be about to write an identity.
    """
    own = threading.current_thread()
    while any(not (thread is own or thread.daemon) for thread in threading.enumerate()):
        time.sleep(LOOK_SECONDS)
    _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
