"""Tokens and labels are checked before they are sent, and the item that has a wrong one is named."""

from __future__ import annotations

from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from farflung.client.run.index_check import IndexCheck
from farflung.errors import JobError
from farflung.opdag.capture import capture
from farflung.opdag.graph import Graph

ITEMS = ["data[3]", "data[8]", "data[1]"]
VOCABULARY, KINDS, LENGTH = 7, 3, 5


class Next(nn.Module):
    """Predicts the next token and, of each token's kind, what it was told; the first kind is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 4)
        self.head = nn.Linear(4, VOCABULARY)
        self.register_buffer("places", torch.arange(LENGTH - 1))

    def forward(self, tokens: Tensor, kinds: Tensor, weights: Tensor) -> Tensor:
        x = self.table(tokens[:, :-1]) + self.head.weight[self.places]
        later = self.head(x)
        following = F.cross_entropy(later.flatten(0, 1), tokens[:, 1:].flatten())
        kind = F.cross_entropy(later[..., :KINDS].flatten(0, 1), kinds[:, 1:].flatten() - 1)
        return following + kind + 0 * weights.mean()


@cache
def graph() -> Graph:
    return capture(Next(), good()).graph


def good() -> dict[str, Tensor]:
    """Tokens and kinds at their ends; a kind that is ignored, and one that is out of range but not used."""
    tokens = torch.tensor([[0, VOCABULARY - 1, 1, 2, 3]] * len(ITEMS))
    kinds = torch.tensor([[77, 1, KINDS, -99, 2]] * len(ITEMS))
    return {"tokens": tokens, "kinds": kinds, "weights": torch.rand(len(ITEMS), 2)}


def test_what_the_model_takes_passes() -> None:
    batch = good()
    IndexCheck(graph(), len(ITEMS)).require(batch, ITEMS)  # raises nothing
    assert all(torch.equal(batch[name], same) for name, same in good().items() if name != "weights")


@pytest.mark.parametrize(
    ("name", "place", "value", "words"),
    [
        ("tokens", 0, 7, "index 7 in 'tokens' where module 'table' takes 0 to 6"),
        ("tokens", LENGTH - 1, 9, r"index 9 in 'tokens' where the loss \(cross_entropy_loss\) takes 0 to 6"),
        ("kinds", 2, 4, r"index 3 in 'kinds' where the loss \(cross_entropy_loss\) takes 0 to 2"),
        ("kinds", 2, 0, r"index -1 in 'kinds' where the loss \(cross_entropy_loss\) takes 0 to 2"),
    ],
)
def test_a_wrong_one_is_named_with_its_item(name: str, place: int, value: int, words: str) -> None:
    batch = good()
    batch[name][1, place] = value
    with pytest.raises(JobError, match=rf"^data\[8\] contains {words}: the data has a token or class"):
        IndexCheck(graph(), len(ITEMS)).require(batch, ITEMS)


class Remapped(nn.Module):
    """Looks tokens up in a list of numbers before it embeds them."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(2, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.table(torch.as_tensor([0, 1, 2])[tokens]).square().mean()


def test_an_index_that_is_looked_up_by_a_wrong_one() -> None:
    check = IndexCheck(capture(Remapped(), {"tokens": torch.zeros(3, 2, dtype=torch.int64)}).graph, 3)
    batch = {"tokens": torch.tensor([[0, 1], [1, 0], [1, 2]])}
    with pytest.raises(JobError, match=r"^data\[1\] contains index 2 where module 'table' takes"):
        check.require(batch, ITEMS)
    batch["tokens"][0, 0] = 3
    with pytest.raises(JobError, match=r"^data\[3\] contains index 3 in 'tokens' where aten.index.Tensor"):
        check.require(batch, ITEMS)
