"""The one family of errors a user may see.

Each message names what was expected, what was found and what to do. The command line prints the message
as one line and exits non-zero; anything else that escapes is a defect of ours and ends in a traceback.
"""

from __future__ import annotations


class FarflungError(Exception):
    """Base of every error that a user can cause or cure."""

    exit_code = 2


class CaptureError(FarflungError):
    """The model cannot become an OP-DAG; names the op, the module path and the user's source line.

    `lint` is the check that refused it (`opdag.capture.verdicts.LINTS`).
    """

    def __init__(self, message: str, lint: str = "opset") -> None:
        super().__init__(message)
        self.lint = lint


class GraphError(FarflungError):
    """An OP-DAG that came from outside breaks a rule of the wire format or of the opset."""


class JobError(FarflungError):
    """The job file or the `Job` it returned cannot be used."""


class DataError(JobError):
    """A microbatch that the submitter sent cannot be used."""


class PlanError(FarflungError):
    """No plan exists for this model on these workers."""


class TooFewCuts(PlanError):
    """The model cannot be cut into so many segments: `found` says why, and `most` there can be."""

    def __init__(self, found: str, cure: str, most: int) -> None:
        super().__init__(f"{found}: {cure}")
        self.found = found
        self.most = most


class TopologyError(FarflungError):
    """A topology cannot be read, or says something impossible."""


class PictureError(FarflungError):
    """A picture cannot be drawn here, or not into this file."""


class ProfileError(FarflungError):
    """A device profile cannot be read or made, or is not of this model."""


class WeightsError(FarflungError):
    """Stored weights cannot be read, or may not be read from there."""


class StoreUnknown(FarflungError):
    """No file system for a URL is installed or known."""


class CopyError(FarflungError):
    """A copy of a share of a job's state cannot be written to this worker's disk, or not be used."""


class CopyUnfit(CopyError):
    """A copy has another part of the state than the share, or its pieces are not what its header says.

    If its file is intact, each worker that reads it finds that.
    """


class IdentityError(FarflungError):
    """A token, certificate or certificate authority was refused."""


class StoreError(FarflungError):
    """The broker's store cannot be used: in use, damaged, of a newer farflung, or its disk is full."""


class ProtocolError(FarflungError):
    """A peer sent something that the protocol does not allow; the connection is closed."""


class ConnectionFailed(FarflungError):
    """A peer could not be reached, or was lost."""


class AnotherAuthority(ConnectionFailed):
    """Who was reached has a certificate of another authority: to dial again does not help."""


class CodecError(FarflungError):
    """A tensor cannot be written as asked, or bytes that came cannot be read as the tensor they should be."""


class PayloadError(CodecError):
    """A parcel cannot be read as the tensor it should be.

    `sender` is the worker that sent it, None if the submitter did or if it may not be the sender's fault.
    """

    def __init__(self, message: str, sender: str | None) -> None:
        super().__init__(message)
        self.sender = sender


class DeviceHeld(FarflungError):
    """A worker's device is at an op that does not end; only the end of the worker's process ends it."""

    exit_code = 1


class DeviceFailed(FarflungError):
    """A worker's device cannot be used any more by its process, or by any until its driver is reset."""

    exit_code = 1


class CheckpointError(FarflungError):
    """A checkpoint cannot be written or read, is damaged, or is of another run."""


class NotHandedOver(FarflungError):
    """A worker left with a share, or a copy, that others needed."""

    exit_code = 1


class LabError(FarflungError):
    """An emulated network cannot be as it was asked for, or this machine cannot carry it."""


class LaunchError(FarflungError):
    """A launcher cannot write its script, or what should run it is missing or refuses."""


class RunFailed(FarflungError):
    """A training run ended before its last step; the message says why and what was kept."""

    exit_code = 1


class JobRefused(RunFailed):
    """The broker did not take the job of a run, so nothing was trained."""

    exit_code = 2


class RunInterrupted(RunFailed):
    """The user ended a run without waiting for its weights."""

    exit_code = 130


class CallbackFailed(RunFailed):
    """A callback of a run raised; the run was stopped in good order, and the message says what was kept.

    `__cause__` is the callback's own exception.
    """


class FleetClosed(FarflungError):
    """A fleet was used after it was closed."""


class NoWeights(FarflungError):
    """A run has no trained weights, or none yet."""
