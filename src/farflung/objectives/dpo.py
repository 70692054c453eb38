"""`DPO`: direct preference optimization of an adapter."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from farflung.errors import JobError
from farflung.objectives.log_likelihood import log_likelihoods, scores_of
from farflung.text import kind_of

_SWITCH = "_disable_adapters"
"""An adapted layer of PEFT computes as the layer that it adapts while this attribute is true."""

_BASE_STAYS = ("gaussian", "eva", "orthogonal")
"""How PEFT may begin a LoRA adapter without taking something from the base; True and False do not either."""


class DPO(nn.Module):
    """Trains a model's adapter to prefer chosen answers to rejected ones (arXiv 2305.18290, equation 7).

    The loss is the mean over pairs of -log sigmoid(r_chosen - r_rejected), where the reward r of an answer is
    beta times the log of how much more likely the policy finds it than the reference model does. That is the
    policy without its adapter and without dropout. Both read the same weights: capture puts their two passes
    side by side, so each worker holds its layers once and runs both passes through them. The reference model
    has no gradients.

    Use it as `Job(model=DPO(model), collate=farflung.data.Pairs(length))`. `farflung.metrics.reward_accuracy`
    is the share of pairs whose chosen answer has the larger reward.

    Parameters
    ----------
    policy
        A causal language model that `peft.get_peft_model` has wrapped: LoRA or another adapter that adds to
        layers. It is called with `input_ids` and gives `logits`. Only its adapter is trained.
    beta
        How strongly the policy is held to the reference model; 0.1 is usual.

    Raises
    ------
    JobError
        The policy has no adapter to leave out, one that has taken something from the base (such as PiSSA),
        or trains more than that; `beta` is not a positive number.
    """

    def __init__(self, policy: nn.Module, beta: float = 0.1) -> None:
        super().__init__()
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not 0 < beta < math.inf:
            raise JobError(f"beta must be a positive number, found {beta!r}")
        _require_adapter(policy)
        self.policy = policy
        self.beta = float(beta)

    def forward(
        self, chosen: Tensor, chosen_labels: Tensor, rejected: Tensor, rejected_labels: Tensor
    ) -> dict[str, Tensor]:
        """The loss and the rewards of each pair.

        Parameters
        ----------
        chosen, rejected : int64 (batch, length)
            Tokens of a prompt and an answer.
        chosen_labels, rejected_labels : int64 (batch, length)
            The same tokens; prompt and padding have -100.

        Returns
        -------
        `loss`, a scalar; `chosen_rewards` and `rejected_rewards`, (batch,).
        """
        tokens = torch.stack((chosen, rejected)).flatten(0, 1)
        labels = torch.stack((chosen_labels, rejected_labels)).flatten(0, 1)
        policy = log_likelihoods(scores_of(self.policy(input_ids=tokens), "the policy"), labels)
        with torch.no_grad(), without_adapter(self.policy):
            reference = log_likelihoods(scores_of(self.policy(input_ids=tokens), "the policy"), labels)
        rewards = self.beta * (policy - reference)
        chosen_rewards, rejected_rewards = rewards.view(2, chosen.shape[0]).unbind()
        loss = -F.logsigmoid(chosen_rewards - rejected_rewards).mean()
        return {"loss": loss, "chosen_rewards": chosen_rewards, "rejected_rewards": rejected_rewards}


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """A PEFT model as its base computes in evaluation mode, within this context.

    PEFT's own `disable_adapter` changes `requires_grad`, which a graph cannot hold; this sets the switch that
    it sets in each layer.
    """
    modes = [(part, part.training) for part in model.modules()]
    switches = [(part, getattr(part, _SWITCH)) for part in _adapted(model)]
    model.eval()
    try:
        for part, _ in switches:
            setattr(part, _SWITCH, True)
        yield
    finally:
        for part, is_disabled in switches:
            setattr(part, _SWITCH, is_disabled)
        for part, mode in modes:
            part.training = mode


def _adapted(model: nn.Module) -> list[nn.Module]:
    """The layers that PEFT has put an adapter into."""
    return [part for part in model.modules() if _SWITCH in vars(part) or hasattr(type(part), _SWITCH)]


def _require_adapter(policy: Any) -> None:
    configs: Any = getattr(policy, "peft_config", None)
    is_wrapped = callable(getattr(policy, "disable_adapter", None)) and configs
    active = set(policy.active_adapters) if is_wrapped else set()
    if any(configs[name].is_prompt_learning for name in active):
        raise JobError("DPO needs an adapter of layers, such as LoRA, and not a learned prompt")
    for name in active:
        beginning = getattr(configs[name], "init_lora_weights", True)
        if isinstance(beginning, str) and beginning not in _BASE_STAYS:
            raise JobError(
                f"init_lora_weights={beginning!r} changes the base, so without the adapter it would be"
                " another model than the one to compare with: leave it at True"
            )
    if not is_wrapped or not _adapted(policy):
        raise JobError(
            f"DPO compares a model with itself without its adapter, and {kind_of(policy)} has none to"
            " disable: wrap it with peft.get_peft_model"
        )
    trained = [name for name, one in policy.named_parameters() if one.requires_grad]
    if outside := [name for name in trained if active.isdisjoint(name.split("."))]:
        raise JobError(
            f"{outside[0]} is trained beside the adapter, so the reference would change with it: freeze it,"
            " or name its module in the adapter's modules_to_save"
        )
