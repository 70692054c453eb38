"""Where a run trains: on local workers that it starts, or on those of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from farflung.client.options.planning import load_topology, parse_efficiency, parse_recompute, parse_replicas
from farflung.errors import JobError
from farflung.plans.wishes import AUTO
from farflung.text import count_of

if TYPE_CHECKING:
    from farflung.client.output.run_record import RunOptions
    from farflung.plans import CodecWishes, Wishes

MOST_LOCAL = 256


@dataclass(frozen=True)
class Target:
    """Where to train: on `local` workers started for the run, or (0) on those of a broker.

    Of a broker's workers it takes `workers` (0: the planner chooses), from `pool` if that names any;
    `asked_by` is the option that gave the number. Local workers use `frameworks` in turn; if that is empty,
    each uses what is installed. Those on PyTorch compute on `device`. `notes` are what the user should know.
    `connected` workers are at the broker now; None if it has not been asked.
    """

    local: int
    workers: int
    asked_by: str
    pool: Sequence[str]
    frameworks: Sequence[str]
    device: str
    wishes: Wishes
    notes: tuple[str, ...] = ()
    connected: int | None = None

    @property
    def depth(self) -> int:
        """How many segments the plan is known to have at least; 0 if the planner chooses."""
        return self.workers // self.wishes.replicas if self.wishes.replicas else 0


def parse_target(options: RunOptions, token: str | None, codecs: CodecWishes) -> Target:
    """The target that the options describe; raises JobError if they contradict each other."""
    local, workers, on = options.local, options.workers or 0, options.on
    at_broker = options.broker is not None or token is not None
    if local is not None:
        is_elsewhere = at_broker or on or options.topology or options.home or options.with_local_worker
        _require_own_workers(local, workers, bool(is_elsewhere))
    if workers < 0:
        raise JobError(f"--workers must be 0 (the planner chooses) or more, found {workers}")
    if (replicas := parse_replicas(options.replicas or "1")) > 1:
        _require_even(local or workers, replicas, "--local" if local else "--workers")
    frameworks, chosen = _frameworks(local, options.backends), _ids("--on", on)
    if on and workers > len(chosen):
        raise JobError(
            f"--on names {count_of(len(chosen), 'worker')}, --workers asks for {workers}: name more"
        )
    if replicas > 1 and not workers and len(chosen) % replicas:
        who = count_of(len(chosen), "worker")
        raise JobError(f"--on names {who}, which cannot be shared out among {replicas} replicas")
    wishes = _wishes(options, chosen, codecs)
    pool = chosen or (wishes.topology.ids if wishes.topology else [])
    if known := local_ids(local or 0) or pool:
        codecs.require_ends(known)
    notes: tuple[str, ...] = ()
    if local is not None and wishes.scheduler != AUTO:
        notes = (f"--scheduler {wishes.scheduler} is ignored: --local workers are not measured before a run",)
    asked_by = "--local" if local else "--on" if chosen and not workers else "--workers"
    count = local or workers or len(chosen)
    return Target(local or 0, count, asked_by, pool, frameworks, _device(options), wishes, notes)


def _require_own_workers(local: int, workers: int, names_others: bool) -> None:
    """Check what is said beside `--local`: it trains on all workers that it starts."""
    if not 1 <= local <= MOST_LOCAL:
        raise JobError(f"--local takes 1 to {MOST_LOCAL} workers, found {local}")
    if names_others:
        raise JobError(
            "--local starts its own broker and workers, all alike:"
            " leave --broker, --token, --workers, --on, --topology, --home and --with-local-worker out"
        )
    if workers:
        other = "" if workers == local else f", or start as many with --local {workers}"
        raise JobError(
            f"--local {local} trains on all its {count_of(local, 'worker')}: leave --workers out{other}"
        )


def _require_even(workers: int, replicas: int, option: str) -> None:
    if workers and workers % replicas:
        less, more = workers - workers % replicas, workers + replicas - workers % replicas
        cure = f"{option} {less} or {more}" if less else f"{option} {more}"
        who = count_of(workers, "worker")
        raise JobError(f"{who} cannot be shared out among {replicas} replicas: use {cure}")


def local_ids(count: int) -> list[str]:
    """The ids of the workers that `--local` starts (see `localhost.fleet`)."""
    return [f"worker-{number}" for number in range(count)]


def _frameworks(local: int | None, backends: str | None) -> list[str]:
    """Parse `--backends`; raises JobError if one is unknown or not installed."""
    if backends is None:
        return []
    if local is None:
        raise JobError("--backends needs --local: other workers choose theirs with `farflung join --backend`")
    from farflung.runtime.frameworks import COMPUTING, chosen

    names = [name.strip() for name in backends.split(",")]
    unfit = [name for name in names if name not in COMPUTING]
    if unfit:
        raise JobError(f"--backends takes {' and '.join(COMPUTING)}, found {unfit[0][:40]!r}")
    if len(names) > local:
        raise JobError(f"--backends names {len(names)} for --local {local}: leave some out")
    return [chosen(name) for name in names]


def _device(options: RunOptions) -> str:
    """Parse `--device`; raises JobError if it is unknown or there are no local workers."""
    if options.device is None:
        return AUTO
    if options.local is None:
        raise JobError("--device needs --local: other workers choose theirs with `farflung join --device`")
    from farflung.runtime.frameworks import check_device

    return check_device(options.device)


def _ids(option: str, given: str | None) -> list[str]:
    """Parse the worker ids of an option."""
    from farflung.transport.security.names import check_id

    ids = [] if given is None else [check_id(id.strip()) for id in given.split(",")]
    if len(set(ids)) < len(ids):
        raise JobError(f"{option} names a worker twice: {given}")
    return ids


def _wishes(options: RunOptions, chosen: Sequence[str], codecs: CodecWishes) -> Wishes:
    from farflung.planner.registry import scheduler as scheduler_called
    from farflung.plans import Wishes
    from farflung.plans.wishes import KeepHome

    scheduler, recompute = options.scheduler or AUTO, options.recompute or AUTO
    scheduler_called(scheduler)
    parse_efficiency(options.efficiency)
    found = None if options.topology is None else load_topology(options.topology)
    unknown = [id for id in chosen if found is not None and id not in found.ids]
    if unknown:
        raise JobError(f"--on names {unknown[0]}, which the topology does not have")
    replicas = parse_replicas(options.replicas or "1")
    home = KeepHome((), tuple(_ids("--home", options.home)))
    return Wishes(scheduler, found, options.efficiency, parse_recompute(recompute), codecs, replicas, home)
