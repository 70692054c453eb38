"""Refusals and remarks: what capture would get wrong in silence, and errors with the user's line."""

from __future__ import annotations

import io
import logging
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn

from farflung.errors import CaptureError

_TORCH = str(Path(torch.__file__).parent)
_SELF = str(Path(__file__).parent)


def user_line(frames: traceback.StackSummary) -> str | None:
    """`file:line in function` of the innermost frame outside torch and farflung, or None."""
    for frame in reversed(frames):
        if not frame.filename.startswith((_TORCH, _SELF, "<")) and "importlib" not in frame.filename:
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return None


def line_of_stack_trace(text: str | None) -> str:
    """`file:line` of the innermost user frame in a stack trace that export attached to a node."""
    for match in reversed(re.findall(r'File "([^"]+)", line (\d+)', text or "")):
        if not match[0].startswith((_TORCH, _SELF)) and not match[0].startswith("torch/"):
            return f"{match[0]}:{match[1]}"
    return ""


@contextmanager
def forbid_custom_functions() -> Iterator[None]:
    """Refuse `autograd.Function`: export traces through it and loses its backward without a word."""

    def refuse(cls: type, *args: object, **kwargs: object) -> None:
        line = user_line(traceback.extract_stack()) or "unknown place"
        if cls.__module__.startswith("torch."):
            raise CaptureError(f"torch's higher-order op {cls.__name__} cannot be captured ({line})")
        raise CaptureError(
            f"{cls.__name__} is a custom autograd.Function, whose backward cannot be captured ({line}): "
            "write it with differentiable torch ops"
        )

    original = torch.autograd.Function.__dict__["apply"]
    torch.autograd.Function.apply = classmethod(refuse)  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = original  # type: ignore[method-assign]


@contextmanager
def forbid_buffer_assignment() -> Iterator[None]:
    """Refuse `self.buffer = value` in forward: export drops it, and the buffer would never change."""
    original = nn.Module.__setattr__

    def assign(self: nn.Module, name: str, value: object) -> None:
        caller = sys._getframe(1).f_code.co_filename  # export itself swaps buffers for fake ones
        buffer = self.__dict__.get("_buffers", {}).get(name)
        if buffer is not None and value is not buffer and not caller.startswith(_TORCH):
            line = user_line(traceback.extract_stack()) or "unknown place"
            raise CaptureError(f"buffer {name!r} is assigned ({line}): write self.{name}.copy_(...)")
        original(self, name, value)  # type: ignore[arg-type]

    nn.Module.__setattr__ = assign  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.__setattr__ = original  # type: ignore[method-assign]


@contextmanager
def watch_checkpointing() -> Iterator[list[str]]:
    """Note activation checkpointing: the graph holds the plain ops, so it saves no memory there.

    Both of torch's ways are replaced beneath `checkpoint`, which user code often imported by its own name.
    """
    remarks: list[str] = []

    def note() -> None:
        if not remarks:
            line = user_line(traceback.extract_stack())
            remarks.append(f"activation checkpointing is dropped by capture ({line})")

    def run(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        note()
        return function(*args)

    def plain(*_: Any, **__: Any) -> Iterator[None]:
        note()
        yield

    internals = {
        "CheckpointFunction": SimpleNamespace(apply=run),
        "_checkpoint_without_reentrant_generator": plain,
    }
    originals = {name: getattr(torch.utils.checkpoint, name) for name in internals}
    try:
        for name, replacement in internals.items():
            setattr(torch.utils.checkpoint, name, replacement)
        yield remarks
    finally:
        for name, original in originals.items():
            setattr(torch.utils.checkpoint, name, original)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what `torch.export` prints when it fails (whole graphs) away: the error says it in one line."""
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


_DECIDE = "use torch.where or move the decision out of forward"
_KNOWN = (
    ("GuardOnDataDependentSymNode", "control flow depends on a tensor's data", _DECIDE),
    ("DataDependent", "control flow depends on a tensor's data", _DECIDE),
    ("DynamicOutputShape", "an op's output size depends on a tensor's data", "use torch.where or a mask"),
    (
        "exported program constant's list",
        "`.data`, or a tensor that was made outside of forward, is used",
        "write .detach(), or register a buffer",
    ),
    ("ConstraintViolation", "the batch dimension is used in a way that fixes it", "take sizes from x.shape"),
)


def explain_failure(error: Exception) -> CaptureError:
    """The one-line form of an exception that `torch.export` raised, with the user's source line."""
    causes: list[BaseException] = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    for cause in causes:
        if isinstance(cause, CaptureError):
            return cause
    lines = [user_line(traceback.extract_tb(cause.__traceback__)) for cause in causes]
    line = next((found for found in reversed(lines) if found), "unknown place")
    text = " ".join(type(cause).__name__ + " " + str(cause)[:400] for cause in causes)
    for name, meaning, hint in _KNOWN:
        if name in text:
            return CaptureError(f"{meaning} at {line}: {hint}")
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return CaptureError(f"the model cannot be captured: {type(error).__name__}: {first[:300]} (at {line})")
