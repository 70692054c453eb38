"""What a submitter asks of the broker: the training settings, and the message that submits a job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farflung.client.capture.prepared import Prepared
from farflung.client.run.checkpointing import NEVER, CheckpointPolicy
from farflung.client.run.checkpoints import RunCheckpoints
from farflung.client.run.start import Start
from farflung.errors import RunFailed
from farflung.plans import Wishes
from farflung.plans.codec_policy import is_auto
from farflung.plans.wishes import CodecWishes
from farflung.protocol.fields import Opset
from farflung.protocol.messages import Submit, encode
from farflung.protocol.submitter import PATIENCE_SECONDS
from farflung.runtime.training import Training
from farflung.transport.wire.frames import MAXIMUM_CONTROL_BYTES


def training_of(prepared: Prepared, codecs: CodecWishes, policy: CheckpointPolicy = NEVER) -> Training:
    """The training settings of a job that `policy` saves; its links are coded as `codecs` or the job ask."""
    job = prepared.job
    codecs = codecs.otherwise(job.codec, job.max_loss_gap, job.sum_codec).of_job(job.is_steady)
    training = prepared.written_by(codecs.every).training
    training = training.with_codecs(codecs.codebook, sample=is_auto(codecs.every))
    return msgspec.structs.replace(training, copies=max(policy.copies, int(training.keeps_best)))


def submission(
    prepared: Prepared,
    training: Training,
    workers: int,
    on: Sequence[str],
    wishes: Wishes,
    start: Start,
    checkpoints: RunCheckpoints,
    patience_seconds: int = PATIENCE_SECONDS,
) -> Submit:
    """The message that submits a job: the captured program, how to train and to plan it, where it begins.

    Raises
    ------
    RunFailed
        The graph is too large for a message.
    """
    submit = Submit(
        prepared.job.name or "job",
        prepared.program,
        training,
        workers,
        list(on),
        wishes,
        Opset.own(),
        unit=start.unit,
        attempts=checkpoints.attempts,
        checkpoint_every=checkpoints.policy.steps,
        checkpoint_end=checkpoints.wants_slots_at_end,
        run=checkpoints.run,
        patience_seconds=patience_seconds,
        monitored=list(start.monitored),
        saves=checkpoints.policy.saves,
    )
    _require_short(submit)
    return submit


def _require_short(submit: Submit) -> None:
    """Refuse a job that is too large for a control message, before anything waits for it."""
    size = len(encode(submit))
    if size > MAXIMUM_CONTROL_BYTES:
        topology = " and topology" if submit.wishes.topology else ""
        raise RunFailed(
            f"the model's graph{topology} take {size} bytes, at most {MAXIMUM_CONTROL_BYTES} can be sent:"
            " register large constant tensors of the model as buffers, or plan on fewer workers"
        )
