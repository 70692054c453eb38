"""Messages between a submitter and the broker, in the order of a job."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from farflung.plans import NO_WISHES, Plan, Prediction, Wishes
from farflung.plans.codec_pair import CodecPairName
from farflung.protocol.checks import MOST_CHECKED, PieceDigest
from farflung.protocol.fields import Addresses, Count, Id, Message, Opset, Text
from farflung.protocol.traffic import LinkTraffic
from farflung.protocol.worker import MetricSums
from farflung.runtime.monitoring import Monitored
from farflung.runtime.training import Training

MOST_ATTEMPTS = 10**9
PATIENCE_SECONDS = 86_400
"""How long a job waits for its submitter, or for workers that no other can replace: a day."""


Findings = Annotated[list[Monitored], Meta(max_length=2)]
"""What each monitor of a job has found."""


class Submit(Message, frozen=True):
    """Submit a job: the encoded OP-DAG (no weights), how to train it, on how many workers, how to plan it.

    Each of `workers` workers gets a part; with 0 the planner chooses how many. `on` names the workers to
    choose from, of which so many must be idle, with 0 all of them; if empty, any may be used. `opset` is the
    opset that the graph was captured with.

    A job that goes on from a checkpoint begins at `unit`, and its attempts are numbered from `attempts` + 1:
    so many did earlier runs of it have. The state is copied to the submitter after each `checkpoint_every`
    steps (0: only when it asks, see `Keep`). With `checkpoint_end` workers send the state of the optimizer
    and of the coders with the weights when the job ends (`SendState`). `saves` says whether the submitter
    saves checkpoints of what it gets; else copies are for the best weights alone.

    `monitored` is what the monitors of `training` have found before; empty: nothing.

    `run` is a random name of the run (empty: none). While its job is not over, the same `Submit` again makes
    no second job: it is answered like `Return` with attempt 0. A job whose submitter is away is held for
    `patience_seconds`.
    """

    name: Text
    graph: bytes
    training: Training
    workers: Count
    on: Annotated[list[Id], Meta(max_length=100_000)] = msgspec.field(default_factory=list)
    wishes: Wishes = NO_WISHES
    opset: Opset | None = None
    unit: Count = 0
    attempts: Annotated[int, Meta(ge=0, le=MOST_ATTEMPTS)] = 0
    checkpoint_every: Count = 0
    checkpoint_end: bool = False
    run: Text = ""
    patience_seconds: Count = PATIENCE_SECONDS
    monitored: Findings = msgspec.field(default_factory=list)
    saves: bool = False

    def __post_init__(self) -> None:
        if len(self.monitored) not in (0, len(self.training.monitors)):
            raise ValueError(f"expected what {len(self.training.monitors)} monitors have found")
        if self.on and (self.workers > len(self.on) or len(set(self.on)) < len(self.on)):
            raise ValueError(f"expected at most {len(self.on)} workers, all with different names")


class Return(Message, frozen=True):
    """The sender is the submitter of this job from now on.

    It holds the links of `attempt` (0: none), and has recorded every unit before `unit`. The answer is
    `Ended` if the job is over. It is `Denied` if the job is unknown or another holder's, or, for now, if
    another session of the submitter holds it and was heard a moment ago. Else `Accepted` comes, and then what
    the sender has missed: `UnitDone` of each decided unit from `unit` on, with the attempt that decided it,
    `RolledBack` if its attempt ended so, and where the job stands: `Planned`, `Running` or `Collecting`. A
    job that runs or is collected goes on in a new attempt if the sender holds none of its links. The sender
    then says again what may have been lost: `Cancel`, `Keep`, its newest `Kept`, `Collected`.
    """

    job: Id
    attempt: Count
    unit: Count


UNTIL = "at most until"
"""What in the state text of a job that has run stands before the time at which its patience ends."""

_WAITING = "waiting for"


def waiting_for(workers: str) -> str:
    """The state text of a job that waits for `workers` (their names, or how many)."""
    return f"{_WAITING} {workers}"


def waits_for_more(state: str) -> bool:
    """Whether the state text `state` is that of a job that waits for any more workers."""
    return state.startswith(f"{_WAITING} ") and " more " in state


def had_of_needed(had: int, needed: int) -> str:
    """The part of such a text that says how many workers there are, and how many the job needs."""
    return f"have {had}, the job needs {needed}"


def had_and_needed(state: str) -> tuple[int, int]:
    """What `had_of_needed` said in a state text; (0, 1) if it said nothing there."""
    found = re.search(had_of_needed(0, 0).replace("0", r"(\d+)"), state)
    return (int(found[1]), int(found[2])) if found else (0, 1)


class Accepted(Message, frozen=True):
    """The job's id, and its state in words ("waiting for 1 more worker (have 1, the job needs 2)").

    `lacking` means that enough workers are connected, but too few of them have the model's ops. `missing` is
    how many workers the job waits for. Of its members, `away` are those that it waits for: the broker knows
    that they are lost or gone for a while. A submitter that returns hears how many `validation_microbatches`
    evaluations take before it hears of those that it missed; 0: not said.
    """

    job: Id
    state: Text
    lacking: bool = False
    missing: Count = 0
    away: list[Id] = msgspec.field(default_factory=list)
    validation_microbatches: Count = 0


class Planned(Message, frozen=True):
    """The plan: dial these workers, send each segment's state to its worker, and feed inputs after `Running`.

    `owned[s]` names the parameters and buffers that segment s owns: the submitter sends them to its worker
    and gets them back at the end. A parameter used by several segments is owned by the first of them.
    `prediction` is the simulated step, if workers and links are known. `unable` maps workers that have no
    part to the ops of the model that they lack.

    The attempt begins at `unit`. If it `keeps` the state, the workers go on with what they hold, for this
    `reason`: send none. The `replayers` run the units from `replay_from` on again before, and ask for their
    inputs (`Pull`). The `newcomers` of a job with replicas get their state from others. After a `recut` the
    workers have the state from copies of their disks that were made on another plan, and codecs begin anew.
    `in_order` is as in `RolledBack`. Evaluations take so many `validation_microbatches`; 0: as many as the
    submitter asked for.
    """

    job: Id
    attempt: Count
    plan: Plan
    owned: list[list[str]]
    addresses: dict[Id, Addresses]
    prediction: Prediction | None = None
    unable: dict[Id, Text] = msgspec.field(default_factory=dict)
    notes: list[Text] = msgspec.field(default_factory=list)
    unit: Count = 0
    keeps: bool = False
    reason: Text = ""
    replayers: list[Id] = msgspec.field(default_factory=list)
    replay_from: Count = 0
    recut: bool = False
    in_order: bool = False
    newcomers: list[Id] = msgspec.field(default_factory=list)
    validation_microbatches: Count = 0


class FeedCheck(Message, frozen=True):
    """An idle worker, `checker`, runs a member's share again to check it, beside the attempt.

    Dial it at `addresses`, and give it the inputs of the units from `first` to before `over` when it asks
    (`Pull`). In `plan` it has the member's place. If it begins with the `start` of the attempt, send it that.
    Without a checker the check is over: close the link.
    """

    job: Id
    attempt: Count
    checker: Id | None = None
    plan: Plan | None = None
    addresses: Addresses = msgspec.field(default_factory=list)
    first: Count = 0
    over: Count = 0
    start: bool = False


class CheckSaid(Message, frozen=True):
    """What came of a check of `worker`, in `words`: its units from `first` to before `over` were run again.

    Without a `checker` it was not checked. If `agrees` is false although there is one, others differ. The job
    needs a worker that is not there if it is `lacking` one.
    """

    job: Id
    attempt: Count
    words: Text
    worker: Id | None = None
    checker: Id | None = None
    first: Count = 0
    over: Count = 0
    agrees: bool = False
    lacking: bool = False


class Stalled(Message, frozen=True):
    """For how many `seconds` each worker that loads has taken nothing of what it is sent, or had it all.

    The submitter repeats this while an attempt loads, and does not know which workers are ready. Without it
    the broker allows for the slowest useful line.
    """

    job: Id
    attempt: Count
    seconds: Annotated[dict[Id, Count], Meta(max_length=100_000)]


class Running(Message, frozen=True):
    """Every worker has loaded; the first unit that is not decided has begun."""

    job: Id
    attempt: Count


class UnitDone(Message, frozen=True):
    """A unit was decided. `loss` sums the shares in segment order, `gradient_norm` is before clipping.

    `links` is the traffic between workers in this unit; `bytes_copied`, what they sent of state meanwhile, is
    counted apart. With `keep` every worker now sends a copy of its state right after this unit, which the
    submitter answers with `Kept`. `metrics` has the sums of an evaluation's metrics over its microbatches,
    and `monitored` what the job's monitors have found up to this unit. `squares` are the sums of the squared
    gradients of a step by segment, before clipping, where all pipelines have the same sums as each has them.
    """

    job: Id
    attempt: Count
    unit: Count
    loss: float
    gradient_norm: float
    bytes_sent: Count
    links: list[LinkTraffic] = msgspec.field(default_factory=list)
    keep: bool = False
    bytes_copied: Count = 0
    metrics: MetricSums = msgspec.field(default_factory=dict)
    monitored: Findings = msgspec.field(default_factory=list)
    squares: Annotated[dict[Count, float], Meta(max_length=100_000)] = msgspec.field(default_factory=dict)


class Keep(Message, frozen=True):
    """Copy the state after the next training step, as soon as no earlier copy is under way.

    A wish of an earlier attempt counts, too. The last unit is not copied: the state is sent after it anyway.
    """

    job: Id
    attempt: Count


class Kept(Message, frozen=True):
    """The submitter is through with the copy of the state after `unit`, so the next copy may be made.

    If it is `stored`, the job begins there again after a failure (`RolledBack`).
    """

    job: Id
    attempt: Count
    unit: Count
    stored: bool = True


class RolledBack(Message, frozen=True):
    """The attempt ended for this reason: another one will begin at `unit`, after `step` steps.

    The submitter then sends the state of that unit: of the copy that it stored last, else the state with
    which it submitted the job. If it is `held`, workers have it on their disks, and the submitter sends none.
    Should they not come back, another `RolledBack` of the same attempt follows. All is `in_order` if the job
    moves to a better plan, or without a worker that leaves.
    """

    job: Id
    attempt: Count
    unit: Count
    step: Count
    reason: Text
    held: bool = False
    in_order: bool = False


class Considered(Message, frozen=True):
    """The broker has considered another plan after `step` steps: whether the job moves, and why, in `words`.

    `slow` describes each worker that has become slow. A job that moves goes on in another attempt
    (`RolledBack`) once its state is copied; no step is lost.
    """

    job: Id
    attempt: Count
    step: Count
    moves: bool
    words: Text
    slow: Annotated[list[Text], Meta(max_length=100_000)] = msgspec.field(default_factory=list)


class CodecChange(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A link gets another codec pair, whose compression ratio is `ratio`, for this reason."""

    source: Id
    target: Id
    codec: CodecPairName
    ratio: float
    reason: Text


class CodecsChosen(Message, frozen=True):
    """Codecs change from `unit` on, after `step` steps; `words` are warnings about codecs."""

    job: Id
    attempt: Count
    unit: Count
    step: Count
    changes: list[CodecChange]
    words: list[Text]


class Cancel(Message, frozen=True):
    """End the job; with `collect` the workers first send the state of the last applied step."""

    job: Id
    reason: Text
    collect: bool


class Collecting(Message, frozen=True):
    """Workers now send their state (of step `step`); `state` and `reason` say how the job ends.

    `monitored` is what its monitors have found. What is to come was `checked` to have these digests.
    """

    job: Id
    attempt: Count
    step: Count
    state: Text
    reason: Text
    monitored: Findings = msgspec.field(default_factory=list)
    checked: Annotated[list[PieceDigest], Meta(max_length=MOST_CHECKED)] = msgspec.field(default_factory=list)


class Collected(Message, frozen=True):
    """The submitter has received and written the state."""

    job: Id
    attempt: Count


class Ended(Message, frozen=True):
    """The job is over: `state` is done, failed or cancelled."""

    job: Id
    state: Text
    reason: Text
