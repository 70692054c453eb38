"""Which pipelines that train apart (DiLoCo) are later with a step than their job allows. Pure."""

from __future__ import annotations

from farflung.broker.core.records import RUNNING, Job


def late_members(job: Job, now: float) -> list[str]:
    """The members of the pipelines that hold the others up for too long, in plan order.

    A pipeline is through with a unit once all of its members have reported. The others of a quorum that is
    through wait for `grace` seconds. In a merge all wait for each other, so none is later than others; and in
    a unit of the first pipeline alone the others have nothing to do.
    """
    sync, plan, group = job.sync, job.plan, job.group
    if sync is None or sync.grace is None or sync.quorum is None or plan is None or group is None:
        return []
    if job.state != RUNNING or not group.unit.train or group.unit.alone:
        return []
    missing = group.missing_workers()
    late = {plan.pipeline_of(plan.segments_of(name)[0]) for name in missing}
    through = dict.fromkeys(set(plan.live_pipelines()) - late, 0.0)
    for (name, _), at in zip(group.ready_messages, group.times, strict=True):
        pipeline = plan.pipeline_of(plan.segments_of(name)[0])
        if pipeline in through:
            through[pipeline] = max(through[pipeline], at)
    if not late or len(through) < sync.quorum:
        return []
    since = sorted(through.values())[sync.quorum - 1]
    if now - since <= sync.grace:
        return []
    return [name for name in plan.workers() if plan.pipeline_of(plan.segments_of(name)[0]) in late]
