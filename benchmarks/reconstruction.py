"""What workers can reconstruct of the data from what they receive, with `Job(keep_home=)`, noise, or neither.

A network of six layers of width 64 trains on images of 64 independent pixels, with one of ten labels drawn at
random, so nothing can be guessed: what is recovered came from the links. Each attacker knows some of 4,096
samples. From those it learns, by ridge regression, to tell images from the activations that it receives, and
by nearest means of directions to tell labels from gradients (Li et al., "Label Leakage and Protection in
Two-party Split Learning", arXiv 2102.08504). It is judged by the second half of the samples.

    python -m benchmarks.reconstruction [--json]
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph
from farflung.planner.assignment import Assignment
from farflung.planner.home import kept_at_home
from farflung.planner.placing import PlannedJob, place
from farflung.plans import FEEDER
from farflung.plans.wishes import KeepHome
from farflung.runtime.in_process import InProcessPipeline
from farflung.runtime.optimizers.declared import SGD
from farflung.runtime.parcel import Parcel
from farflung.runtime.training import Training

WIDTH, LABELS, LAYERS = 64, 10, 6
BATCH, STEPS = 64, 64
KNOWN = (20, 100, 500)
"""How many samples an attacker knows."""

JUDGED = BATCH * STEPS // 2
"""The first sample by which it is judged."""

RIDGES = (1e-3, 1.0, 30.0, 1000.0)
"""An attacker is granted the best of these."""

NOISES = (0.3, 1.0, 3.0)
HOME = KeepHome(("inputs", "targets"), ("home",))


@dataclass(frozen=True)
class Found:
    """What a worker recovers that knows some samples: the explained variance of images, the part of labels
    that it tells.

    `read_inputs` and `read_targets` say that it reads them, so that there is nothing to reconstruct.
    """

    setting: str
    worker: str
    known: int
    read_inputs: bool
    read_targets: bool
    inputs_explained: float
    labels_told: float


class Network(nn.Module):
    """Six layers with tanh between; the loss is the cross entropy of the last one."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS - 1))
        self.last = nn.Linear(WIDTH, LABELS)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return functional.cross_entropy(self.last(x), label)


class Tapped(InProcessPipeline):
    """A pipeline that notes what each worker receives, as (value, is a gradient) -> one tensor a step."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.seen: dict[str, dict[tuple[int, bool], list[Tensor]]] = {}
        for worker, executor in self._executors.items():
            self.seen[worker] = defaultdict(list)
            executor.receive = self._tap(worker, executor.receive)  # type: ignore[method-assign]

    def _tap(self, worker: str, receive: Any) -> Any:
        def tapped(parcel: Parcel[Tensor]) -> None:
            if parcel.payload is not None:
                self.seen[worker][parcel.value, parcel.gradient].append(parcel.payload.detach().clone())
            receive(parcel)

        return tapped


def planned(graph: Graph, kept_layers: int) -> PlannedJob:
    """Workers a and b share the model; so many layers at each end, and the loss, are at home, if any."""
    first = [first_read(graph, f"layers.{at}.weight") for at in range(LAYERS - 1)]
    first.append(first_read(graph, "last.weight"))
    if not kept_layers:
        return place(graph, Assignment((first[3],), (("a",), ("b",)), 1, 1), BATCH)
    cuts = (first[kept_layers], first[3], first[LAYERS - kept_layers])
    workers = (("home",), ("a",), ("b",), ("home",))
    return kept_at_home(place(graph, Assignment(cuts, workers, 1, 1), BATCH), graph, HOME)


def first_read(graph: Graph, name: str) -> int:
    """The position of the first node that reads a parameter."""
    (value,) = [entry.value for entry in graph.inputs if entry.name == name]
    return next(at for at, node in enumerate(graph.nodes) if value in node.reads())


def attacked(setting: str, kept_layers: int, noise: float = 0.0) -> list[Found]:
    """What a and b recover while the network trains, with this noise on what leaves home."""
    torch.manual_seed(0)
    model = Network()
    images = torch.randn(STEPS, BATCH, WIDTH)
    labels = torch.randint(0, LABELS, (STEPS, BATCH))
    graph = capture(model, {"x": images[0], "label": labels[0]}).graph
    made = planned(graph, kept_layers)
    training = Training(STEPS, 1, BATCH, SGD(0.05), clip=None, home_noise=noise)
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    pipeline = Tapped(graph, made.plan, made.segments, state, training)
    for step in range(STEPS):
        pipeline.run(step, [{"x": images[step], "label": labels[step]}])
        pipeline.decide(step, 1.0)
    names = {entry.value: entry.name for entry in graph.inputs}
    found = []
    for worker in "ab":
        fed = {
            names[edge.value]
            for edge in made.plan.edges
            if edge.source == FEEDER and made.plan.worker_of(edge.target) == worker
        }
        seen = pipeline.seen[worker]
        assert fed == {names[value] for value, _ in seen if value in names}
        for known in KNOWN:
            images_found = 1.0 if "x" in fed else best_images(seen, images.flatten(0, 1), known)
            labels_found = 1.0 if "label" in fed else best_labels(seen, labels.flatten(), known)
            found.append(
                Found(setting, worker, known, "x" in fed, "label" in fed, images_found, labels_found)
            )
    return found


def best_images(seen: dict[tuple[int, bool], list[Tensor]], images: Tensor, known: int) -> float:
    """The explained variance of unknown images, by the activations that tell most of them."""
    activations = [torch.cat(each) for (_, is_gradient), each in seen.items() if not is_gradient]
    return max(
        (explained(each, images, known) for each in activations if each.is_floating_point()), default=0.0
    )


def explained(activations: Tensor, images: Tensor, known: int) -> float:
    """Regress known images on their activations; how much of the variance of the others that explains.

    The attacker inverts the activations, which are public, or where that would blow noise up, does not.
    """
    inverse = torch.atanh(activations.clamp(-1 + 1e-6, 1 - 1e-6))
    return max(
        0.0,
        *(
            regressed(form.double(), images.double(), known, ridge)
            for form in (inverse, activations)
            for ridge in RIDGES
        ),
    )


def regressed(activations: Tensor, images: Tensor, known: int, ridge: float) -> float:
    """The explained variance of a ridge regression."""
    features = torch.cat([activations, torch.ones(len(activations), 1)], 1)
    given, target = features[:known], images[:known]
    penalty = ridge * torch.eye(given.shape[1], dtype=torch.float64)
    weights = torch.linalg.solve(given.T @ given + penalty, given.T @ target)
    error = (features[JUDGED:] @ weights - images[JUDGED:]).square().mean()
    return float(1 - error / images[JUDGED:].var())


def best_labels(seen: dict[tuple[int, bool], list[Tensor]], labels: Tensor, known: int) -> float:
    """The part of unknown labels that the gradients tell that tell most of them."""
    gradients = [torch.cat(each) for (_, is_gradient), each in seen.items() if is_gradient]
    return max((told(each, labels, known) for each in gradients), default=1 / LABELS)


def told(gradients: Tensor, labels: Tensor, known: int) -> float:
    """Compare directions of gradients with the mean of each known label; the part that is right."""
    directions = functional.normalize(gradients, dim=1)
    means = torch.stack([directions[:known][labels[:known] == label].sum(0) for label in range(LABELS)])
    guessed = (directions[JUDGED:] @ functional.normalize(means, dim=1).T).argmax(1)
    return float((guessed == labels[JUDGED:]).double().mean())


def measure() -> list[Found]:
    """Nothing kept at home; one or two layers at each end; one layer, and noise on what leaves home."""
    return [
        *attacked("nothing at home", 0),
        *attacked("1 layer at each end at home", 1),
        *attacked("2 layers at each end at home", 2),
        *(found for noise in NOISES for found in attacked(f"1 layer at each end, noise {noise:g}", 1, noise)),
    ]


def main() -> None:
    """Print what each worker recovers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    found = measure()
    if parser.parse_args().json:
        print(json.dumps([asdict(one) for one in found]))
        return
    for one in found:
        images = "reads them" if one.read_inputs else f"{one.inputs_explained:.0%} of their variance"
        labels = "reads them" if one.read_targets else f"{one.labels_told:.0%} (chance: {1 / LABELS:.0%})"
        knows = f"{one.worker} knows {one.known} samples"
        print(f"{one.setting:30} {knows:20}: images {images:24} labels {labels}")


if __name__ == "__main__":
    main()
