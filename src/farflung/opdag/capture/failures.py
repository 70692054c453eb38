"""Find the user's source line, and explain exceptions of `torch.export`."""

from __future__ import annotations

import inspect
import io
import logging
import re
import traceback
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

import torch
from torch import nn

from farflung.errors import CaptureError
from farflung.opdag.capture.loss import CALLED
from farflung.opdag.capture.symbols import in_words
from farflung.text import first_line

_TORCH = str(Path(torch.__file__).parent)
_SELF = str(Path(__file__).parent)
_UNKNOWN = "unknown place"


def user_line(frames: traceback.StackSummary) -> str | None:
    """`file:line in function` of the innermost frame outside torch and farflung, or None."""
    for frame in reversed(frames):
        if not is_of_torch(frame.filename) and "importlib" not in frame.filename:
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


def here() -> str:
    """The user's line that runs now."""
    return user_line(traceback.extract_stack()) or _UNKNOWN


def is_of_torch(filename: str) -> bool:
    """Whether code belongs to torch or to capture itself, or was generated."""
    return filename.startswith((_TORCH, _SELF, "<"))


def line_of_stack_trace(text: str | None) -> str:
    """`file:line` of the innermost user frame in a stack trace that export attached to a node."""
    for match in reversed(re.findall(r'File "([^"]+)", line (\d+)', text or "")):
        if not match[0].startswith((_TORCH, _SELF)) and not match[0].startswith("torch/"):
            return f"{match[0]}:{match[1]}"
    return ""


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress what `torch.export` prints when it fails (whole graphs): the error says it in one line."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.fx.experimental.symbolic_shapes")]
    before = [logger.disabled for logger in loggers]
    for logger in loggers:
        logger.disabled = True
    try:
        with redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, disabled in zip(loggers, before, strict=True):
            logger.disabled = disabled


DECIDE = "use torch.where or move the decision out of forward"
_KNOWN = (
    (
        "UncapturedHigherOrderOpError",
        "control-flow",
        "a higher-order op cannot be captured",
        "for torch.cond use torch.where, for while_loop a loop of fixed length",
    ),
    ("GuardOnDataDependentSymNode", "control-flow", "control flow depends on a tensor's data", DECIDE),
    ("DataDependent", "control-flow", "control flow depends on a tensor's data", DECIDE),
    (
        "DynamicOutputShape",
        "control-flow",
        "an op's output size depends on a tensor's data",
        "use torch.where or a mask",
    ),
    (
        ".numpy() is not supported",
        "control-flow",
        "`.numpy()` takes data out of torch",
        "write it with torch ops",
    ),
    (
        "exported program constant's list",
        "gradient-modes",
        "a tensor that was made outside of forward is used",
        "register it as a buffer",
    ),
    (
        "ConstraintViolation",
        "batch-size",
        "the batch dimension is used in a way that fixes it",
        "take sizes from x.shape",
    ),
)


def explain_failure(error: Exception, dependent: str | None = None) -> CaptureError:
    """A one-line explanation of an exception from `torch.export`, with the user's source line.

    `dependent` says where data was last asked for, if it was: a more exact reason than export's.
    """
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, CaptureError):
            return cause
    lines = [user_line(traceback.extract_tb(cause.__traceback__)) for cause in causes]
    line = next((found for found in reversed(lines) if found), _UNKNOWN)
    text = " ".join(type(cause).__name__ + " " + str(cause)[:400] for cause in causes)
    for name, lint, meaning, hint in _KNOWN:
        if name in text:
            if lint == "control-flow" and dependent:
                return CaptureError(dependent, lint)
            return CaptureError(f"{meaning} at {line}: {hint}", lint)
    if dependent and any(isinstance(cause, AssertionError) for cause in causes):
        return CaptureError(dependent, "control-flow")  # torch's own: the user's ask for data, and are known
    said = in_words(first_line(error))[:300]
    message = f"the model cannot be captured: {type(error).__name__}: {said} (at {line})"
    notes = [note for cause in causes for note in getattr(cause, "__notes__", ())]
    called = next((f"; {note}" for note in notes if note.startswith(CALLED)), "")
    return CaptureError(message + called, "opset")


_MASK = "attention_mask"


def with_missing_mask(error: CaptureError, module: nn.Module, given: Collection[str]) -> CaptureError:
    """The error and, if an attention mask that was left out may be its cause, advice to give one.

    Some models of transformers make a mask of ones where none is given, but not while they are exported.
    """
    if _MASK in given or "'NoneType' object" not in str(error):
        return error
    if not any(_MASK in inspect.signature(part.forward).parameters for part in module.modules()):
        return error
    return CaptureError(
        f"{error}; the data has no {_MASK!r}, and some models make none while they are captured: give one, of"
        " ones where nothing is padding",
        error.lint,
    )


_SWITCHES = {
    "control-flow": (r"\w*layerdrop", "layer drop", "{}=0"),
    "random-numbers": ("mask_time_prob|mask_feature_prob", "SpecAugment", "apply_spec_augment=False"),
}
"""What a setting of transformers turns on, and the setting that turns it off."""


def with_switch(error: CaptureError, module: nn.Module) -> CaptureError:
    """The error and, if a setting of transformers may be its cause, how to turn that off."""
    if error.lint not in _SWITCHES:
        return error
    known, what, off = _SWITCHES[error.lint]
    for part in module.modules():
        config = getattr(part, "config", None)
        for setting, value in vars(config).items() if hasattr(config, "model_type") else ():
            if re.fullmatch(known, setting) and value:
                advice = f"to turn {what} off, make the model with {off.format(setting)} in its config"
                return CaptureError(f"{error}; {advice}", error.lint)
    return error
