"""Load the `Job` that a job file declares. The file runs on the submitter's machine and nowhere else."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from farflung.client.api.job import Job
from farflung.client.options.merging import with_inner_steps
from farflung.client.options.overrides import override
from farflung.data import reading_from
from farflung.errors import FarflungError, JobError
from farflung.opdag.graph import Precision
from farflung.runtime.frameworks import require_installed
from farflung.text import kind_of

PACKAGE = Path(__file__).parents[2]
"""The folder of farflung itself, which lies beside the job file where that is in a clone."""
MODULE_NAME = "farflung_job"
"""`__name__` of a job file. The file is in `sys.modules` under it, as pickle and dataclasses require."""


def load_job(
    path: str | Path,
    *,
    steps: int | None = None,
    text: str | Path | None = None,
    precision: Precision | None = None,
    codec: str | None = None,
    sum_codec: str | None = None,
    inner_steps: int | None = None,
    overrides: Sequence[str] = (),
) -> Job:
    """Run a job file as `python FILE` would, call its `job()` and return the result.

    The file's folder is put first on `sys.path` and stays there, because the model may import later.

    Parameters
    ----------
    path
        A Python file with `def job() -> farflung.Job`.
    steps, precision, codec, sum_codec
        Override the job's own values.
    inner_steps
        Steps between two merges of replicas that train apart, see `farflung.client.options.merging`.
    overrides
        More of them, as FIELD=VALUE; see `farflung.client.options.overrides.override`.
    text
        File or folder that `farflung.data.text()` reads instead of the Python library.

    Raises
    ------
    JobError
        The file is missing or not Python; torch is not installed; the file or `job()` raises; `job` is
        missing, not callable, or does not return a `Job`; a value that overrides is unfit; or `text`
        is given and never read. The message names the line of the user's file if there is one.
    """
    path = Path(path)
    with nullcontext() if text is None else reading_from(text):
        job = override(_call_job(_run(path), path), overrides)
    loaded = replace(
        job,
        steps=job.steps if steps is None else steps,
        precision=job.precision if precision is None else precision,
        codec=job.codec if codec is None else codec,
        sum_codec=job.sum_codec if sum_codec is None else sum_codec,
        name=path.stem[:64] if job.name is None else job.name,
    )
    return with_inner_steps(loaded, inner_steps)


class _UncachedLoader(SourceFileLoader):
    """Source loader that writes no `__pycache__`, just as running the file as a program writes none."""

    def path_stats(self, path: str) -> Mapping[str, int]:
        raise OSError(f"{path} is compiled afresh")


def require_job_file(path: Path) -> None:
    """Raise JobError if the file does not exist or torch is not installed."""
    if not path.is_file():
        found = "a folder" if path.is_dir() else "nothing"
        raise JobError(f"expected a job file at {path}, found {found}")
    require_installed("torch", "a job's model is a PyTorch module")


def _run(path: Path) -> ModuleType:
    require_job_file(path)
    file = str(path.resolve())
    loader = _UncachedLoader(MODULE_NAME, file)
    spec = spec_from_loader(MODULE_NAME, loader)
    assert spec is not None
    module = module_from_spec(spec)
    sys.modules[MODULE_NAME] = module
    folder = str(Path(file).parent)
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _blame(error, path) from error
    return module


def _call_job(module: ModuleType, path: Path) -> Job:
    function = getattr(module, "job", None)
    if function is None:
        raise JobError(f"{path} has no job(): add a function `def job() -> farflung.Job`")
    if not callable(function):
        raise JobError(f"`job` in {path} is {kind_of(function)}: make it `def job() -> farflung.Job`")
    try:
        job = function()
    except (Exception, SystemExit) as error:
        raise _blame(error, path) from error
    if not isinstance(job, Job):
        raise JobError(f"job() in {path} must return a farflung.Job, found {kind_of(job)}")
    return job


_UNKNOWN_FIELD = re.compile(r"Job\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def _blame(error: BaseException, path: Path) -> JobError:
    """A one-line error that says what went wrong in the user's code, and where."""
    if isinstance(error, SyntaxError):
        return JobError(f"{error.filename or path}:{error.lineno or 0}: not valid Python: {error.msg}")
    where = _user_line(error, path)
    if isinstance(error, FarflungError):
        return JobError(f"{where}: {error}")
    said = str(error).strip().splitlines()
    if isinstance(error, TypeError) and said and (unknown := _UNKNOWN_FIELD.fullmatch(said[0])):
        close = get_close_matches(unknown[1], [one.name for one in fields(Job)], 1)
        hint = f": did you mean {close[0]}?" if close else ""
        return JobError(f"{where}: Job has no field {unknown[1][:60]!r}{hint}")
    message = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return JobError(f"{where}: the job file raised {message}")


def _user_line(error: BaseException, path: Path) -> str:
    """The deepest frame of a traceback in the job's own folder, ignoring installed packages and farflung."""
    folder = path.resolve().parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        is_theirs = "site-packages" in file.parts or file.is_relative_to(PACKAGE)
        if file.is_relative_to(folder) and not is_theirs:
            return f"{path if file == path.resolve() else file}:{frame.lineno}"
    return str(path)
