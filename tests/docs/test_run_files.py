"""docs/reference/run-files.md names every key that a run writes."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import msgspec
import pytest

from farflung.client.output.checkpoints.record import (
    CheckpointRecord,
    CutSegment,
    DataIdentity,
    ModelIdentity,
    RunIdentity,
    StoredFile,
    Versions,
)
from farflung.client.output.recorder import Recorder
from farflung.client.output.records import CorpusRecord, LinkRow, StepRow, Summary, ValidationRow
from farflung.client.output.run_record import RunOptions, RunRecord
from farflung.lab.run.emulation import Emulation
from farflung.lab.run.report import LabReport
from farflung.lab.switch.stats import LinkStats, Stats
from farflung.plans.plan import Edge, LaterCodecs, LinkCodec, Placement, Plan
from farflung.plans.wishes import Prediction

PAGE = (Path(__file__).parents[2] / "docs/reference/run-files.md").read_text()
FILES = {
    "metrics.jsonl": [StepRow, LinkRow, ValidationRow],
    "summary.json": [Summary, CorpusRecord],
    "events.jsonl": [Prediction],
    "run.json": [RunRecord, RunOptions],
    "plan.json": [Plan, Placement, Edge, LinkCodec, LaterCodecs],
    "checkpoint.json": [
        CheckpointRecord,
        RunIdentity,
        ModelIdentity,
        DataIdentity,
        Versions,
        CutSegment,
        StoredFile,
    ],
    "lab.json": [LabReport, Stats, LinkStats, Emulation],
}


def section(file: str) -> str:
    """The part of the page below the heading of a file."""
    return PAGE.partition(f"## {file}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("file", FILES)
def test_every_key_of_a_file_is_on_the_page(file: str) -> None:
    named = set(re.findall(r"`(?:stats\.)?(\w+)(?:\[\])?`", section(file)))
    keys = {field.encode_name for struct in FILES[file] for field in msgspec.structs.fields(struct)}
    assert not keys - named


def test_every_event_is_on_the_page_with_its_keys() -> None:
    calls = re.findall(r'_record\(\s*"([^"]+)"(.*?)\)\n', inspect.getsource(Recorder), re.DOTALL)
    rows = dict(re.findall(r"^\| `([a-z ]+)` \| (.*) \|$", section("events.jsonl"), re.MULTILINE))
    assert {event for event, _ in calls} <= set(rows)
    for event, keys in calls:
        assert not {key for key in re.findall(r"(\w+)=", keys) if f"`{key}`" not in rows[event]}, event
