"""The adapter of a model that PEFT has wrapped, written as PEFT's own files.

`PeftModel.from_pretrained(base, FOLDER)` loads what is written here. PEFT is no dependency: a process that
has not imported it has no such model.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.client.output.checkpoints.record import ADAPTER
from farflung.client.output.run_folder import disk_failure
from farflung.client.output.tensor_file import BASE, BEST, STEP, apart, read_tensors, write_tensors
from farflung.errors import CheckpointError, JobError
from farflung.files import replace_folder, sync
from farflung.text import first_line

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG, TENSORS = ADAPTER


@dataclass(frozen=True)
class Adapter:
    """The active adapter, called `name`, of the PEFT model `owner`, at `prefix` in the job's module."""

    owner: Any
    prefix: str
    name: str

    def tensors(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The adapter's tensors by PEFT's names.

        `weights` has every tensor of the job's module by its name in the state dict.
        """
        from peft import get_peft_model_state_dict  # type: ignore[import-not-found,unused-ignore]

        own = {
            name.removeprefix(self.prefix): tensor
            for name, tensor in weights.items()
            if name.startswith(self.prefix)
        }
        # Embeddings of the base are not the adapter's; to look for others, PEFT asks the hub.
        found: dict[str, Tensor] = get_peft_model_state_dict(
            self._with_prompts_of(own), state_dict=own, adapter_name=self.name, save_embedding_layers=False
        )
        return found

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the adapter's tensors, by PEFT's names, into the PEFT model.

        Raises
        ------
        JobError
            They do not fit.
        """
        from peft import set_peft_model_state_dict

        try:
            set_peft_model_state_dict(self.owner, dict(tensors), adapter_name=self.name)
        except (RuntimeError, ValueError, KeyError) as error:
            raise JobError(f"the adapter does not fit the model: {first_line(error)}") from error

    def holds(self, weights: Mapping[str, Tensor], names: Collection[str]) -> bool:
        """Whether the adapter has every tensor of `weights` with one of these names."""
        if self._is_prompt:
            return all(name.startswith(f"{self.prefix}{self._prompts}") for name in names)
        held = {id(tensor) for tensor in self.tensors(weights).values()}
        return all(name in weights and id(weights[name]) in held for name in names)

    @property
    def _is_prompt(self) -> bool:
        """Whether the adapter is a learned prompt, which PEFT reads from the module itself."""
        return bool(self.owner.peft_config[self.name].is_prompt_learning)

    @property
    def _prompts(self) -> str:
        return f"prompt_encoder.{self.name}."

    def _with_prompts_of(self, weights: Mapping[str, Tensor]) -> Any:
        """The PEFT model, or one that shares all of it but a learned prompt, which is that of `weights`."""
        if not self._is_prompt:
            return self.owner
        encoders = copy.copy(self.owner.prompt_encoder)
        encoders._modules = {**encoders._modules}
        encoders[self.name] = copy.deepcopy(encoders[self.name])
        prompts = {
            n.removeprefix(self._prompts): t for n, t in weights.items() if n.startswith(self._prompts)
        }
        encoders[self.name].load_state_dict(prompts)
        owner = copy.copy(self.owner)
        owner._modules = {**owner._modules, "prompt_encoder": encoders}
        return owner


def adapter_of(module: nn.Module) -> Adapter | None:
    """The active adapter of a module that is a PEFT model, or has one; None if there is not exactly one."""
    peft = sys.modules.get("peft")
    if peft is None:
        return None
    owners = [(name, one) for name, one in module.named_modules() if isinstance(one, peft.PeftModel)]
    if len(owners) != 1:
        return None
    name, owner = owners[0]
    active = owner.active_adapters
    return Adapter(owner, f"{name}." if name else "", active[0]) if len(active) == 1 else None


def adapter_that_holds(module: nn.Module, names: Collection[str]) -> Adapter | None:
    """The adapter of a module if it has all that training changes, the tensors of these `names`."""
    adapter = adapter_of(module)
    if adapter is None or not adapter.holds(module.state_dict(keep_vars=True), names):
        return None
    return adapter


def merged(module: nn.Module, trained: Mapping[str, Tensor], ties: Mapping[str, str]) -> dict[str, Tensor]:
    """The module's state dict, updated with the `trained` tensors; `ties` maps further names."""
    return {
        name: trained.get(ties.get(name, name), own)
        for name, own in module.state_dict(keep_vars=True).items()
    }


@dataclass(frozen=True)
class TrainedAdapter:
    """An adapter that was trained for `step` steps on the base with this digest.

    `weights` has every tensor by its name in the state dict of the job's module. `best`, if not empty, says
    what makes them the best ones of a run.
    """

    adapter: Adapter
    weights: Mapping[str, Tensor]
    step: int
    base_sha256: str
    best: str = ""


def write_adapter(folder: Path, trained: TrainedAdapter) -> None:
    """Write the files of an adapter into an existing folder; all are on disk then.

    Raises
    ------
    OSError
        The disk refuses a write.
    """
    metadata = {"format": "pt", STEP: str(trained.step), BASE: trained.base_sha256}
    if trained.best:
        metadata[BEST] = trained.best
    write_tensors(folder / TENSORS, dict(apart(trained.adapter.tensors(trained.weights))), metadata)
    _config_of(trained.adapter).save_pretrained(str(folder))
    sync(folder / CONFIG)


def read_adapter(folder: Path) -> tuple[dict[str, Tensor], bytes]:
    """The tensors by PEFT's names, and the configuration, that `write_adapter` wrote.

    Raises
    ------
    CheckpointError
        A file cannot be read.
    """
    try:
        return read_tensors(folder / TENSORS)[0], (folder / CONFIG).read_bytes()
    except OSError as error:
        raise CheckpointError(f"{folder / CONFIG} cannot be read: {error.strerror}") from None


def save_adapter(folder: Path, trained: TrainedAdapter) -> None:
    """Write an adapter's folder under a temporary name, and put it in the place of an older one.

    Raises
    ------
    RunFailed
        The disk refuses the write; the older folder is as it was.
    """
    try:
        with replace_folder(folder) as fresh:
            write_adapter(fresh, trained)
    except OSError as error:
        raise disk_failure(folder.parent, str(error)) from error


def _config_of(adapter: Adapter) -> Any:
    """The adapter's configuration as PEFT's `save_pretrained` writes it, with its base named."""
    owner = adapter.owner
    config = copy.deepcopy(owner.peft_config[adapter.name])
    config.inference_mode = True
    base = owner.get_base_model()
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = getattr(base, "name_or_path", None) or None
    if config.task_type is None:
        kind = type(base)
        config.auto_mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    return config
