"""Dockerfile and compose.yaml agree with the commands that they run. No test builds an image."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from farflung.cli.main import app
from farflung.launchers.kubernetes import FOLDER, USER_ID
from farflung.launchers.launcher import SECONDS_TO_LEAVE

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_farflung_knows_the_command_of_a_service(name: str) -> None:
    service = COMPOSE["services"][name]
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in service["command"]]
    group: Any = typer.main.get_command(app)
    assert group.commands[words[0]].make_context(words[0], words[1:])
    if words[0] == "join":
        assert service["stop_grace_period"] == f"{SECONDS_TO_LEAVE}s"
        assert service["secrets"] == ["token"] and "--token-file=/run/secrets/token" in words


def test_a_worker_on_a_gpu_is_built_with_cuda_and_asks_for_one() -> None:
    worker, on_gpu = COMPOSE["services"]["worker"], COMPOSE["services"]["gpu-worker"]
    assert on_gpu["image"] != worker["image"] and on_gpu["restart"] == worker["restart"]
    (argument,) = on_gpu["build"]["args"]
    assert f"ARG {argument}=" in DOCKERFILE
    assert on_gpu["deploy"]["resources"]["reservations"]["devices"][0]["capabilities"] == ["gpu"]


def test_the_image_has_the_user_and_folder_that_pods_use() -> None:
    assert f"USER {USER_ID}:{USER_ID}" in DOCKERFILE and f"--uid {USER_ID}" in DOCKERFILE
    assert f"FARFLUNG_HOME={FOLDER}" in DOCKERFILE and f"VOLUME {FOLDER}\n" in DOCKERFILE


def test_what_the_image_copies_is_there_and_not_ignored() -> None:
    copied = [
        word for line in re.findall(r"^COPY (?!--)(.*) \S+$", DOCKERFILE, re.M) for word in line.split()
    ]
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "requirements.lock" in copied and "src" in copied
    for name in copied:
        assert (ROOT / name).exists() and f"!{name}" in ignored, name
