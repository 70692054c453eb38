from __future__ import annotations

import asyncio

import pytest

from farflung.broker.planning.fair_lock import FairLock


async def served(*asked: str, leaving: tuple[int, ...] = ()) -> list[str]:
    """In which order jobs get their turn that were all asked for, in this order, while another one had it."""
    rounds, order = FairLock(), list[str]()

    async def work(job: str) -> None:
        async with rounds.turn(job[0]):
            order.append(job)

    async with rounds.turn("z"):
        tasks = [asyncio.create_task(work(job)) for job in asked]
        await asyncio.sleep(0)
        for number in leaving:
            tasks[number].cancel()
        await asyncio.sleep(0)
        assert not order
    await asyncio.gather(*tasks, return_exceptions=True)
    return order


def test_a_submitter_with_many_jobs_holds_another_up_by_one() -> None:
    assert asyncio.run(served("a1", "a2", "a3", "b1", "c1", "b2")) == ["a1", "b1", "c1", "a2", "b2", "a3"]


def test_whoever_stops_waiting_loses_nobody_elses_place() -> None:
    assert asyncio.run(served("a1", "a2", "b1", "c1", leaving=(0, 2))) == ["a2", "c1"]


def test_a_turn_that_comes_as_its_job_is_cancelled_goes_on_to_the_next() -> None:
    async def called_and_cancelled() -> list[str]:
        rounds, order = FairLock(), list[str]()

        async def work(job: str) -> None:
            async with rounds.turn(job):
                order.append(job)

        async with rounds.turn("z"):
            first, second = (asyncio.create_task(work(job)) for job in "ab")
            await asyncio.sleep(0)
        first.cancel()  # it was called when the lock was given back
        await asyncio.gather(first, second, return_exceptions=True)
        async with asyncio.timeout(60), rounds.turn("c"):
            order.append("c")
        return order

    assert asyncio.run(called_and_cancelled()) == ["b", "c"]


def test_one_at_a_time_and_an_error_frees_the_next() -> None:
    async def both() -> None:
        rounds, inside = FairLock(), 0

        async def work(fails: bool) -> None:
            nonlocal inside
            async with rounds.turn("a"):
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1
                if fails:
                    raise ValueError

        done = await asyncio.gather(*(work(n % 2 == 0) for n in range(6)), return_exceptions=True)
        assert sum(isinstance(one, ValueError) for one in done) == 3

    asyncio.run(both())


@pytest.mark.parametrize("jobs", [1, 3])
def test_the_lock_is_free_again_afterwards(jobs: int) -> None:
    assert asyncio.run(served(*(f"a{n}" for n in range(jobs)))) == [f"a{n}" for n in range(jobs)]
