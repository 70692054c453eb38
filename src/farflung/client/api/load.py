"""From a job file to the `Job` it declares. The file runs here, on the submitter's machine, and only here."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from farflung.client.api.job import Job
from farflung.data import reading_from
from farflung.errors import FarflungError, JobError
from farflung.opdag.graph import Precision
from farflung.runtime.frameworks import require_installed
from farflung.text import kind_of

MODULE_NAME = "farflung_job"
"""What `__name__` is in a job file; `sys.modules` has the file under it, as pickle and dataclasses expect."""


def load_job(
    path: str | Path,
    *,
    steps: int | None = None,
    text: str | Path | None = None,
    precision: Precision | None = None,
    codec: str | None = None,
) -> Job:
    """Run a job file as `python FILE` would, call its `job()` and return the result.

    The file's folder becomes the first of `sys.path` and stays there, for imports the model makes later.

    Parameters
    ----------
    path
        A Python file with `def job() -> farflung.Job`.
    steps, precision, codec
        Take the place of the job's own.
    text
        What `farflung.data.text()` reads in place of the Python library.

    Raises
    ------
    JobError
        The file is missing or no Python, there is no torch, it or `job()` raises, `job` is missing, cannot be
        called or returns something else than a `Job`, `steps` is out of range, or nothing reads `text`. The
        message names the user's line where there is one.
    """
    path = Path(path)
    with nullcontext() if text is None else reading_from(text):
        job = _call_job(_run(path), path)
    return replace(
        job,
        steps=job.steps if steps is None else steps,
        precision=job.precision if precision is None else precision,
        codec=job.codec if codec is None else codec,
        name=path.stem[:64] if job.name is None else job.name,
    )


class _UncachedLoader(SourceFileLoader):
    """Leaves no `__pycache__` beside a job file, as running it as a program would not."""

    def path_stats(self, path: str) -> Mapping[str, int]:
        raise OSError(f"{path} is compiled afresh")


def require_job_file(path: Path) -> None:
    """Raise JobError if there is no file, or no torch to read it with."""
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


def _blame(error: BaseException, path: Path) -> JobError:
    """One line that names what went wrong in the user's own code, and where."""
    if isinstance(error, SyntaxError):
        return JobError(f"{error.filename or path}:{error.lineno or 0}: not valid Python: {error.msg}")
    where = _user_line(error, path)
    if isinstance(error, FarflungError):
        return JobError(f"{where}: {error}")
    said = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {said[0]}" if said else type(error).__name__
    return JobError(f"{where}: the job file raised {message}")


def _user_line(error: BaseException, path: Path) -> str:
    """The deepest frame in a file of the job's own folder, installed packages aside."""
    folder = path.resolve().parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(folder) and "site-packages" not in file.parts:
            return f"{path if file == path.resolve() else file}:{frame.lineno}"
    return str(path)
