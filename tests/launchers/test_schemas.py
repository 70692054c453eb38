"""Manifests and tasks against the schemas of what reads them (`schemas/`, trimmed to what we use)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.launchers.test_scripts import TOKEN, on_gpus, workers

from farflung.launchers import Kubernetes, SkyPilot

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed: make dev")

SCHEMAS = Path(__file__).parent / "schemas"
DEPLOYMENT, SECRET = "io.k8s.api.apps.v1.Deployment", "io.k8s.api.core.v1.Secret"


def check_kubernetes(document: Any, kind: str) -> None:
    """Validate a document as Kubernetes does in its strict mode."""
    definitions = json.loads((SCHEMAS / "kubernetes.json").read_text())["$defs"]
    jsonschema.validate(document, {"$defs": definitions, "$ref": f"#/$defs/{kind}"})


KUBERNETES = {
    "plain": Kubernetes(workers(), "farflung:1"),
    "all options": Kubernetes(
        workers(cpus=2, disk=7.5, site="attic"), "r.example/farflung@sha256:0", "trains"
    ),
    "gpus": Kubernetes(on_gpus(), "farflung:1"),
    "an existing secret": Kubernetes(workers(), "farflung:1", "trains", "my-token"),
}
SKYPILOT = {
    "plain": SkyPilot(workers()),
    "the whole node": SkyPilot(workers(memory=None)),
    "all options": SkyPilot(on_gpus(cpus=8), "aws/eu-west-1", spot=True, setup=("echo one", "echo 'two: 2'")),
}


@pytest.mark.parametrize("name", KUBERNETES)
def test_kubernetes_takes_the_manifest(name: str) -> None:
    launcher = KUBERNETES[name]
    *secrets, deployment = yaml.safe_load_all(launcher.render(TOKEN))
    check_kubernetes(deployment, DEPLOYMENT)
    assert len(secrets) == (0 if launcher.secret else 1)
    for secret in secrets:
        check_kubernetes(secret, SECRET)


def test_a_misspelt_field_of_a_manifest_is_seen() -> None:
    text = KUBERNETES["plain"].render(TOKEN).replace("terminationGracePeriodSeconds", "gracePeriodSeconds")
    with pytest.raises(jsonschema.ValidationError, match="gracePeriodSeconds"):
        check_kubernetes(list(yaml.safe_load_all(text))[-1], DEPLOYMENT)


@pytest.mark.parametrize("name", SKYPILOT)
def test_skypilot_takes_the_task(name: str) -> None:
    schema = json.loads((SCHEMAS / "skypilot.json").read_text())
    task = yaml.safe_load(SKYPILOT[name].render())
    jsonschema.validate(task, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**task, "nodes": 2}, schema)
