from __future__ import annotations

import pickle
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from farflung.client.api import load
from farflung.client.api.load import MODULE_NAME, load_job
from farflung.errors import JobError

Writer = Callable[..., Path]

GOOD = """
    import torch, farflung

    class Model(torch.nn.Linear):
        pass

    def job():
        return farflung.Job(
            model=Model(3, 1), data=[{"x": torch.zeros(3)}] * 8, optimizer=farflung.SGD(lr=0.1),
            batch=4, microbatches=2, steps=5,
        )
"""
TEXT = GOOD.replace('[{"x": torch.zeros(3)}] * 8', "farflung.data.text(sequence=32)")


@pytest.fixture(autouse=True)
def leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in {MODULE_NAME, "farflung_test_neighbour"} & (set(sys.modules) - before):
        del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path) -> Writer:
    def writer(source: str, name: str = "my_job.py") -> Path:
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return writer


def refusal(path: Path) -> str:
    with pytest.raises(JobError) as caught:
        load_job(path)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


def test_a_job_file_gives_its_job_named_after_the_file(write: Writer) -> None:
    job = load_job(write(GOOD))
    assert (job.steps, job.name) == (5, "my_job")
    assert load_job(write(GOOD.replace("steps=5", "steps=5, name='mine'"))).name == "mine"


def test_steps_given_from_outside_take_the_place_of_the_jobs(write: Writer) -> None:
    assert load_job(write(GOOD), steps=77).steps == 77
    with pytest.raises(JobError, match="steps must be a whole number"):
        load_job(write(GOOD), steps=0)


def test_a_precision_given_from_outside_takes_the_place_of_the_jobs(write: Writer) -> None:
    assert load_job(write(GOOD)).precision == "float32"
    job = load_job(write(GOOD), precision="bfloat16")
    assert (job.precision, job.training().precision, job.steps) == ("bfloat16", "bfloat16", 5)


def test_a_text_given_from_outside_is_read(write: Writer, tmp_path: Path) -> None:
    (tmp_path / "book.txt").write_bytes(b"words " * 5000)
    job = load_job(write(TEXT), text=tmp_path / "book.txt")
    assert job.data.describe()["bytes"] == 30_000  # type: ignore[attr-defined]
    with pytest.raises(JobError, match=r"--text .*book\.txt changes nothing"):
        load_job(write(GOOD), text=tmp_path / "book.txt")
    with pytest.raises(JobError, match=r"none\.txt cannot be read"):
        load_job(write(TEXT), text=tmp_path / "none.txt")


def test_files_beside_the_job_are_importable_also_later(write: Writer) -> None:
    write("STEPS = 9", "farflung_test_neighbour.py")
    late = GOOD.replace("return", "from farflung_test_neighbour import STEPS; return")
    late = late.replace("steps=5", "steps=STEPS")
    assert load_job(write(late)).steps == 9


def test_the_users_classes_can_be_pickled_and_the_main_guard_stays_shut(write: Writer) -> None:
    job = load_job(write(GOOD + "\n    if __name__ == '__main__':\n        raise SystemExit('run me')\n"))
    assert type(job.model).__module__ == MODULE_NAME
    assert pickle.loads(pickle.dumps(type(job.model))) is type(job.model)  # noqa: S301


def test_dataclasses_with_deferred_annotations_work(write: Writer) -> None:
    config = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass Config:\n    n: int = 1\n"
    )
    assert load_job(write(config + textwrap.dedent(GOOD))).steps == 5


def test_a_changed_file_is_run_afresh_and_nothing_is_left_beside_it(write: Writer) -> None:
    path = write(GOOD)
    assert load_job(path).steps == 5
    write(GOOD.replace("steps=5", "steps=6"))
    assert load_job(path).steps == 6
    assert [entry.name for entry in path.parent.iterdir()] == ["my_job.py"]


def test_an_error_names_the_users_line_where_farflung_lies_beside_the_job(
    write: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "farflung_test_neighbour.py").write_text("def refuse():\n    raise ValueError('no batch')\n")
    path = write("import farflung_test_neighbour\nfarflung_test_neighbour.refuse()\n")
    monkeypatch.setattr(load, "PACKAGE", tmp_path / "farflung_test_neighbour.py")
    assert refusal(path) == f"{path}:2: the job file raised ValueError: no batch"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.py").endswith("none.py, found nothing")
    assert refusal(tmp_path).endswith("found a folder")


def test_a_file_that_is_no_python_is_refused_with_its_line(write: Writer) -> None:
    path = write("x = 1\ndef job(:\n    pass\n")
    assert refusal(path).startswith(f"{path}:2: not valid Python: ")
    path.write_bytes(b"x = '\xff\xfe'\n")
    assert "not valid Python" in refusal(path)
    path.write_bytes(b"x = 1\0\n")
    assert "null bytes" in refusal(path)


def test_a_file_that_raises_is_refused_with_the_users_line(write: Writer) -> None:
    path = write("import torch\n\ntorch.zeros(2) @ torch.zeros(3)\n")
    assert refusal(path).startswith(f"{path}:3: the job file raised RuntimeError: ")
    path = write("def helper():\n    raise ValueError('first\\nsecond')\n\ndef job():\n    helper()\n")
    assert refusal(path) == f"{path}:2: the job file raised ValueError: first"
    path = write("import sys\nsys.exit(3)\n")
    assert refusal(path) == f"{path}:2: the job file raised SystemExit: 3"
    path = write("raise KeyError\n")
    assert refusal(path) == f"{path}:1: the job file raised KeyError"


def test_a_neighbour_that_raises_is_named(write: Writer) -> None:
    neighbour = write("\n1 / 0\n", "farflung_test_neighbour.py")
    path = write("import farflung_test_neighbour\n")
    assert refusal(path) == f"{neighbour}:2: the job file raised ZeroDivisionError: division by zero"


def test_a_job_that_farflung_refuses_is_refused_with_the_users_line(write: Writer) -> None:
    path = write(GOOD.replace("batch=4", "batch=5"))
    assert refusal(path).startswith(f"{path}:8: batch must be divisible by microbatches")
    path = write(GOOD.replace("lr=0.1", "lr=-1"))
    assert "raised ValueError: lr must be a finite number, at least 0, found -1" in refusal(path)


def test_a_file_without_a_job_function_is_refused(write: Writer) -> None:
    assert "has no job(): add a function" in refusal(write("x = 1\n"))
    assert "`job` in" in refusal(write("job = 3\n"))
    assert refusal(write("def job():\n    return {}\n")).endswith("must return a farflung.Job, found a dict")
    assert refusal(write("def job():\n    pass\n")).endswith("must return a farflung.Job, found None")
    assert "missing 1 required positional argument" in refusal(write("def job(steps):\n    pass\n"))


def test_a_misspelt_field_of_the_job_is_named_with_the_right_one(write: Writer) -> None:
    path = write(GOOD.replace("steps=5", "step=5"))
    assert refusal(path) == f"{path}:8: Job has no field 'step': did you mean steps?"
    assert refusal(write(GOOD.replace("steps=5", "steps=5, nonsense=1"))).endswith("has no field 'nonsense'")
