"""End a child process when its parent is gone, and remove the parent's temporary folder."""

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

    When the pipe closes, this process gets SIGTERM, and is killed if it takes too long. Each child removes
    `folder`, which a killed parent could not remove: once immediately, in case this process is killed first,
    and again at the end, because a child that is still starting may create it again.
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
    # The default action would skip exit handlers.
    sys.exit(128 + number)


def _remove_last(folder: Path) -> None:
    """Remove the folder once no other thread is running, or `_watch` has waited long enough.

    If SIGTERM interrupts the start of a thread, the interpreter does not wait for that thread, which may be
    about to write an identity.
    """
    own = threading.current_thread()
    while any(not (thread is own or thread.daemon) for thread in threading.enumerate()):
        time.sleep(LOOK_SECONDS)
    _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
