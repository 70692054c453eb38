"""Bugs to plant in what happens when a broker, a worker or a submitter returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.planting import Patch, hears, only, reduces

from farflung.broker.core import facts
from farflung.broker.core.recovering import returns
from farflung.broker.core.training import submitters
from farflung.protocol.messages import Registered
from farflung.worker import events
from farflung.worker.records import State


def loses_its_workers_at_a_restart(patch: Patch) -> None:
    """A broker that was restarted does not wait for the workers that it had."""

    def on_restart(turn: Any) -> None:
        honest(turn)
        for one in list(turn.state.workers.values()):
            if one.away:
                returns.lose(turn, one.worker, "the broker was restarted")

    honest = returns.on_restart
    patch.setattr(returns, "on_restart", on_restart)


def gives_a_returned_worker_nothing(patch: Patch) -> None:
    """A worker that returns does not get what it lacks."""
    patch.setattr(returns, "take_up", lambda turn, name, standing: None)


def forgets_the_last_decision(patch: Patch) -> None:
    """A worker that missed a decision does not get it."""
    patch.setattr(returns, "_decision_for", lambda job, standing: None)


def lets_workers_keep_what_is_over(patch: Patch) -> None:
    """A worker that returns with an attempt that is over is not stopped."""
    patch.setattr(returns, "stop_foreign", lambda turn, name, standing: None)


def waits_for_ever_for_a_worker(patch: Patch) -> None:
    """A worker that does not return never counts as lost."""
    patch.setattr(returns, "on_tick", lambda turn, seconds: None)


def waits_for_ever_for_a_submitter(patch: Patch) -> None:
    """A job whose submitter never returns never ends."""
    patch.setattr(submitters, "on_tick", lambda turn, seconds: None)


def forgets_results(patch: Patch) -> None:
    """A submitter that returns does not hear of all that was decided."""

    def wrong(fact: Any, before: Any, after: Any) -> Any:
        job = after.jobs[fact.job]
        return after.with_job(replace(job, results=job.results[:-1] if fact.unit % 2 else job.results))

    reduces(patch, facts.UnitDecided, wrong)


def submits_twice(patch: Patch) -> None:
    """A job that is submitted again is another one."""
    patch.setattr(submitters, "submitted_before", lambda state, who, message: None)


def lets_two_processes_submit(patch: Patch) -> None:
    """A submitter that lives loses its job to another process."""
    only(patch, "freeze")
    honest = submitters.take_place
    nobody: Mapping[str, float] = {}

    def take_place(turn: Any, job: Any, message: Any, event: Any) -> None:
        honest(turn, job, message, replace(event, elsewhere=nobody))

    patch.setattr(submitters, "take_place", take_place)


def does_not_say_where_a_job_stands(patch: Patch) -> None:
    """A submitter that returns does not hear what it has missed."""
    patch.setattr(submitters, "_missed", lambda state, job, message: [])


def goes_on_with_links_that_are_gone(patch: Patch) -> None:
    """Workers wait for links of a process that is not there any more."""
    patch.setattr(submitters, "_needs_links", lambda job, message: False)


def drops_its_job_without_a_broker(patch: Patch) -> None:
    """A worker that loses its broker drops its job."""

    def wrong(before: Any, event: Any) -> Any:
        if not isinstance(event, events.BrokerLost) or before.load is None:
            return None
        return replace(before.idle, away=True), [events.Drop(event.reason)]

    hears(patch, wrong)


def does_not_say_it_again(patch: Patch) -> None:
    """A worker that returns does not repeat what its broker may not have heard."""
    only(patch, "crash")

    def wrong(before: Any, event: Any) -> Any:
        if isinstance(event, events.FromBroker) and isinstance(event.message, Registered):
            return replace(before, away=False), []
        return None

    hears(patch, wrong)


def says_that_it_holds_nothing(patch: Patch) -> None:
    """A worker that returns does not say what it holds."""
    patch.setattr(State, "standing", None)


RETURN_BUGS = [
    loses_its_workers_at_a_restart,
    gives_a_returned_worker_nothing,
    forgets_the_last_decision,
    lets_workers_keep_what_is_over,
    waits_for_ever_for_a_worker,
    waits_for_ever_for_a_submitter,
    forgets_results,
    submits_twice,
    lets_two_processes_submit,
    does_not_say_where_a_job_stands,
    goes_on_with_links_that_are_gone,
    drops_its_job_without_a_broker,
    does_not_say_it_again,
    says_that_it_holds_nothing,
]
