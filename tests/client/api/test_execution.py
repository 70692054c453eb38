"""What the user asks of a run reaches it, or ends it, whenever it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.client.api.execution import Execution, Host
from farflung.client.api.frontend import Frontend
from farflung.client.output.progress import Observer
from farflung.client.run.returns import PlaceGone
from farflung.errors import RunInterrupted

ASKING: dict[str, Callable[[Execution], None]] = {
    "stop": lambda execution: execution.stop(),
    "leave": lambda execution: execution.leave("left"),
    "end at once": lambda execution: execution.end_at_once(),
}


class Gone:
    """Stands for a submitter whose place at its job is gone; `ask` is called just before it knows."""

    made = 0
    ask: Callable[[], None]

    def __init__(self, *_: object, **__: object) -> None:
        type(self).made += 1

    async def run(self) -> None:
        self.ask()
        raise PlaceGone("job-1 is not known to the broker")

    def stop(self, reason: str) -> None:
        """It goes into a queue that nobody reads any more."""

    leave = stop


@pytest.mark.parametrize("how", ASKING)
@pytest.mark.parametrize("when", ["before", "after"])
def test_what_is_asked_around_the_loss_of_the_place_ends_the_run(
    how: str, when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the run would submit its job again, and go on."""

    async def scenario() -> None:
        class Again:
            def begin(self, *_: object) -> Any:
                if when == "after":
                    loop.call_soon_threadsafe(ASKING[how], execution)

        loop = asyncio.get_running_loop()
        folder = SimpleNamespace(
            logs=Path(), restore_previous=lambda: False, has_checkpoint=lambda: True, close=lambda: None
        )
        begun: Any = SimpleNamespace(
            prepared=SimpleNamespace(emulated=False),
            asked=SimpleNamespace(
                target=SimpleNamespace(workers=1, pool=(), wishes=SimpleNamespace(codecs=None)),
                patience_seconds=60,
            ),
            start=SimpleNamespace(at_checkpoint=Again, command="resume it"),
            folder=folder,
            checkpointing=None,
            log=None,
        )

        @asynccontextmanager
        async def hosting(logs: Path) -> AsyncIterator[Host]:
            yield Host(None)  # type: ignore[arg-type]

        execution = Execution(begun, hosting, Observer(), Frontend())
        Gone.ask = staticmethod((lambda: ASKING[how](execution)) if when == "before" else lambda: None)
        with pytest.raises(RunInterrupted):
            await asyncio.wait_for(execution.run(), 30)

    monkeypatch.setattr("farflung.client.run.submitter.Submitter", Gone)
    Gone.made = 0
    asyncio.run(scenario())
    assert Gone.made == 1
