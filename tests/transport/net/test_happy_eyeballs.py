from __future__ import annotations

import asyncio

import pytest

from farflung.transport.net.happy_eyeballs import AllFailed, race


async def keep(result: str) -> None:
    raise AssertionError(f"{result} was discarded")


async def never() -> str:
    await asyncio.Event().wait()
    return "never"


async def works(result: str = "works") -> str:
    return result


async def fails(words: str) -> str:
    raise OSError(words)


def test_the_first_that_works_is_kept_however_long_another_takes() -> None:
    assert asyncio.run(race([never, lambda: fails("no"), works], keep)) == "works"


def test_attempts_start_in_order() -> None:
    assert asyncio.run(race([lambda: works("a"), lambda: works("b")], keep)) == "a"


def test_of_two_that_work_at_once_one_is_discarded() -> None:
    async def scene() -> tuple[str, list[str]]:
        together, discarded = asyncio.Event(), []

        async def wait(result: str) -> str:
            await together.wait()
            return result

        async def discard(result: str) -> None:
            discarded.append(result)

        async def release() -> str:
            together.set()
            return await never()

        kept = await race([lambda: wait("a"), lambda: wait("b"), release], discard)
        return kept, discarded

    assert asyncio.run(scene()) == ("a", ["b"])


def test_when_all_fail_every_reason_is_given_in_order() -> None:
    with pytest.raises(AllFailed) as caught:
        asyncio.run(race([lambda: fails("one"), lambda: fails("two")], keep))
    assert str(caught.value) == "one; two"
    with pytest.raises(AllFailed):
        asyncio.run(race([], keep))


def test_cancelling_a_race_leaves_no_attempt_running() -> None:
    async def scene() -> None:
        racing = asyncio.create_task(race([never, never], keep))
        await asyncio.sleep(0)
        racing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await racing
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(scene())
