"""transformers: each class of the auto mappings for text, vision and speech, with a shrunk configuration.

Text is 16 random tokens. For sequence-to-sequence models a mask comes with it, as from tokenizers: some
encoders make their own in eager execution alone. Images are random, sound is 0.3 seconds of noise through the
feature extractor that the library names for the architecture; speech models whose main input is text get text
beside it. A model that takes `labels` computes its own loss. The loss of the others, and of those for
connectionist temporal classification (it picks labels by a mask, so its size depends on data), is the mean
square of the first result.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from benchmarks.coverage_cases.case import SAMPLES, Batch, Case, Subject, Unbuildable, runs, square_of_first
from benchmarks.coverage_cases.shrinking import IMAGE, VOCABULARY, shrink
from torch import nn

TASKS = {
    "causal-lm": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked-lm": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq-lm": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "ctc": "MODEL_FOR_CTC_MAPPING_NAMES",
    "audio": "MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
    "speech-seq2seq": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
}
TOKENS = 16
LABELS = 4
RATE = 16000
_STEPS = ((True, True), (False, True), (False, False))


def cases() -> list[Case]:
    """One case for each class of each mapping; a class that stands twice is tried once."""
    from transformers.models.auto import modeling_auto

    found: dict[tuple[str, str], Case] = {}
    for task, mapping in TASKS.items():
        for family, names in getattr(modeling_auto, mapping).items():
            for name in names if isinstance(names, tuple) else (names,):
                found.setdefault((task, name), Case("transformers", task, name, family))
    return list(found.values())


def subject(case: Case) -> Subject:
    """The model and its inputs.

    Raises
    ------
    Unbuildable
        It cannot be made, or does not run.
    """
    import transformers

    kind = getattr(transformers, case.name, None)
    if kind is None:
        raise Unbuildable("the library does not export the class")
    reason = ""
    for widths, images in _STEPS:
        try:
            model = _made(kind, widths, images)
            made = _Inputs(case, model)
            runs(model, made.loss, made.batch(SAMPLES))
        except Exception as error:
            reason = reason or f"{type(error).__name__}: {error}"
            continue
        shown = "shrunk" if widths else "full widths" if images else "full widths and images"
        return Subject(model, made.batch, made.loss, f"{case.name}, {shown}")
    raise Unbuildable(reason[:300])


def _made(kind: Any, widths: bool, images: bool) -> nn.Module:
    config = kind.config_class()
    shrink(config, widths, images)
    config.use_cache = False
    config._experts_implementation = "batched_mm"
    torch.manual_seed(11)
    model: nn.Module = kind(config)
    if hasattr(model, "set_experts_implementation"):
        try:
            model.set_experts_implementation("batched_mm")
        except ValueError:  # it has no experts
            pass
    return model.float()


class _Inputs:
    """What a model of a task is fed."""

    def __init__(self, case: Case, model: nn.Module) -> None:
        self._case = case
        self._config: Any = model.config
        self._takes = inspect.signature(model.forward).parameters
        self._main = str(getattr(model, "main_input_name", "input_ids"))
        self._cache: dict[int, Batch] = {}
        own = "labels" in self._takes and case.task != "ctc"
        self.loss = None if own else square_of_first

    def batch(self, samples: int) -> Batch:
        """Inputs of that many samples, always the same."""
        random = torch.Generator().manual_seed(samples)
        if self._case.task == "image":
            made = self._image(samples, random)
        elif self._case.task in ("ctc", "audio", "speech-seq2seq"):
            made = self._sound(samples, random)
            if self._main == "input_ids":
                made["input_ids"] = self._text(samples, random)
        else:
            made = {"input_ids": self._text(samples, random)}
            if self._case.task == "seq2seq-lm" and "attention_mask" in self._takes:
                made["attention_mask"] = torch.ones_like(made["input_ids"])
        if self.loss is None:
            made["labels"] = self._labels(samples, made, random)
        return made

    def _text(self, samples: int, random: torch.Generator) -> torch.Tensor:
        sizes = [getattr(part, "vocab_size", None) for part in (self._config, self._text_config())]
        most = min([size for size in sizes if isinstance(size, int) and size > 0] + [VOCABULARY])
        return torch.randint(3, max(4, most - 40), (samples, TOKENS), generator=random)

    def _text_config(self) -> Any:
        return self._config.get_text_config(decoder=False)

    def _image(self, samples: int, random: torch.Generator) -> Batch:
        size = getattr(self._config, "image_size", None)
        vision = getattr(self._config, "vision_config", None)
        size = size or getattr(vision, "image_size", None) or IMAGE
        high, wide = size if isinstance(size, list | tuple) else (size, size)
        if self._main == "input_ids":
            return {"input_ids": self._text(samples, random)}
        channels = getattr(self._config, "num_channels", None) or getattr(vision, "num_channels", 3)
        return {self._main: torch.randn(samples, channels, high, wide, generator=random)}

    def _sound(self, samples: int, random: torch.Generator) -> Batch:
        from transformers.models.auto import feature_extraction_auto as known

        name = known.FEATURE_EXTRACTOR_MAPPING_NAMES.get(self._case.family)
        if name is None:
            waves = torch.randn(samples, RATE // 4, generator=random)
            return {self._main: waves}
        if self._case.family == "wav2vec2-bert":  # its processor names this one
            name = "SeamlessM4TFeatureExtractor"
        extractor = known.feature_extractor_class_from_name(name)()
        rate = int(getattr(extractor, "sampling_rate", RATE))
        waves = torch.randn(samples, rate // 4 + rate // 20, generator=random).numpy()
        made = extractor(list(waves), sampling_rate=rate, return_tensors="pt")
        return {
            key: value
            for key, value in made.items()
            if key in self._takes and isinstance(value, torch.Tensor) and value.is_floating_point()
        }

    def _labels(self, samples: int, made: Batch, random: torch.Generator) -> torch.Tensor:
        if self._case.task in ("image", "audio"):
            most = int(getattr(self._config, "num_labels", 2))
            return torch.randint(most, (samples,), generator=random)
        if self._case.task == "speech-seq2seq":
            return self._text(samples, random)
        return made["input_ids"].clone()
