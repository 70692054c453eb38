from __future__ import annotations

import json

import pytest

from farflung.cli.main import run
from farflung.plans.testbeds.catalogue import TESTBEDS


def test_lab_list_names_every_testbed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lab", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(TESTBEDS)
    assert run(["lab", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["testbeds"]
    assert [row["name"] for row in rows] == list(TESTBEDS)
    assert {row["name"]: row["workers"] for row in rows}["fusionllm-48"] == 48
