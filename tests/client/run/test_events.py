"""What a submitter has under way ends with it, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import gc

import pytest

from farflung.client.run.events import BackgroundTasks, TaskFailed
from farflung.errors import ConnectionFailed


def test_what_is_stopped_before_its_first_step_is_never_begun(recwarn: pytest.WarningsRecorder) -> None:
    begun: list[bool] = []

    async def errand() -> None:
        begun.append(True)

    async def stopped_at_once() -> None:
        tasks = BackgroundTasks(lambda trouble: None)
        tasks.begin(errand, collect=False)
        tasks.stop()
        await tasks.ended()

    asyncio.run(stopped_at_once())
    gc.collect()
    assert not begun
    assert not [warning for warning in recwarn if "never awaited" in str(warning.message)]


@pytest.mark.parametrize("collect", [True, False])
def test_a_failure_is_told_with_the_first_error_of_a_group(collect: bool) -> None:
    heard: list[TaskFailed] = []

    async def broken() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(lost())

    async def lost() -> None:
        raise ConnectionFailed("worker a was lost")

    async def scenario() -> None:
        tasks = BackgroundTasks(heard.append)
        tasks.begin(broken, collect)
        await tasks.ended()

    asyncio.run(scenario())
    assert [(str(trouble.error), trouble.collect) for trouble in heard] == [("worker a was lost", collect)]
