"""Declarations of optimizers, which are sent to workers; each backend builds its own.

`recipe_of` says how one parameter is updated, from its name and shape alone, so that its owner, wherever it
is, and one process do the same. `runtime.optimizers.slots` says what is kept of a parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta

from farflung.runtime.optimizers.bounds import require_number, require_whole
from farflung.runtime.optimizers.diloco import DiLoCo
from farflung.runtime.optimizers.schedules import Constant, Schedule, require_schedule

MOST_PATTERNS = 256
Pattern = Annotated[str, Meta(min_length=1, max_length=256)]
Patterns = tuple[Pattern, ...]


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters with numbers of their own.

    Parameters
    ----------
    names
        A pattern of parameter names, or several, as in `fnmatch`: "head.*", ("*.bias", "*norm*").
    lr_scale
        Factor of the optimizer's learning rate for them; 0 leaves them as they are.
    weight_decay
        Instead of the optimizer's own and of `no_decay`, unless None.
    """

    names: Patterns
    lr_scale: float = 1.0
    weight_decay: float | None = None

    def __post_init__(self) -> None:
        make_patterns(self, "names")
        if not self.names:
            raise ValueError("names of a group must have at least one pattern")
        require_number("lr_scale", self.lr_scale, 0.0)
        if self.weight_decay is not None:
            require_number("weight_decay", self.weight_decay, 0.0)


class _Declared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What all optimizers have; each adds its own numbers.

    `diloco` is set by `Job(sync=)`: an anchor and an outer momentum are kept of each parameter then.
    """

    schedule: Schedule = msgspec.field(default_factory=Constant)
    no_decay: Literal["auto"] | Patterns = ()
    groups: tuple[Group, ...] = ()
    ema: float | None = None
    diloco: DiLoCo | None = None

    def _check(self) -> None:
        require_schedule(self.schedule)
        if self.ema is not None:
            require_number("ema", self.ema, 0.0, 1.0, below=True)
        if self.no_decay != "auto":
            make_patterns(self, "no_decay")
        if not isinstance(self.groups, tuple | list) or len(self.groups) > MOST_PATTERNS:
            raise ValueError(f"groups must be a list of at most {MOST_PATTERNS}, found {self.groups!r:.60}")
        for group in self.groups:
            if not isinstance(group, Group):
                raise ValueError(f"groups must be farflung.Group(...), found {group!r:.60}")
        msgspec.structs.force_setattr(self, "groups", tuple(self.groups))

    @property
    def _beside(self) -> int:
        """Numbers kept of each trained one beside those of the rule: its average, its anchor and momentum."""
        return (self.ema is not None) + 2 * (self.diloco is not None)


class AdamW(_Declared, frozen=True, forbid_unknown_fields=True, tag=True):
    """Hyperparameters of `torch.optim.AdamW`.

    Parameters
    ----------
    lr, betas, eps, weight_decay
        As in torch. Weight decay applies to every parameter, as there, unless the two fields below say
        otherwise.
    schedule
        Learning rate over the steps, by default `Constant()`.
    no_decay
        Parameters without weight decay: patterns of names as in `Group`, or "auto" for all with fewer than
        two dimensions, which are biases and the weights of norms.
    groups
        Parameters with their own `lr_scale` or `weight_decay`, each a `Group`. The first that matches counts.
        A tied parameter goes by one of its names, the one in `farflung capture`'s graph.
    ema
        Keep an exponential moving average of each parameter with this decay, as
        `torch.optim.swa_utils.AveragedModel` does with `get_ema_multi_avg_fn(ema)` if it is updated after
        each step: the first average is the parameter after the first step.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        require_betas(self.betas)
        require_number("eps", self.eps, 0.0)
        require_number("weight_decay", self.weight_decay, 0.0)
        self._check()

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number, at most."""
        return 2 + self._beside


class SGD(_Declared, frozen=True, forbid_unknown_fields=True, tag=True):
    """Hyperparameters of `torch.optim.SGD`; `schedule`, `no_decay`, `groups` and `ema` as in `AdamW`.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        require_number("momentum", self.momentum, 0.0, 1.0, below=True)
        require_number("dampening", self.dampening, 0.0, 1.0)
        require_number("weight_decay", self.weight_decay, 0.0)
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            raise ValueError("nesterov needs a momentum above 0 and no dampening")
        self._check()

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number, at most."""
        return (1 if self.momentum else 0) + self._beside


class Lion(_Declared, frozen=True, forbid_unknown_fields=True, tag=True):
    """Lion, the sign of an interpolated momentum (arXiv 2302.06675, algorithm 2).

    It keeps one number for each trained one, half of AdamW's two. The paper advises a third to a tenth of
    AdamW's rate, and a weight decay larger by the same factor. `schedule`, `no_decay`, `groups` and `ema` are
    as in `AdamW`.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        require_betas(self.betas)
        require_number("weight_decay", self.weight_decay, 0.0)
        self._check()

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number, at most."""
        return 1 + self._beside


class Adafactor(_Declared, frozen=True, forbid_unknown_fields=True, tag=True):
    """Hyperparameters of `torch.optim.Adafactor` (arXiv 1804.04235), which keeps next to nothing.

    Of a parameter with two or more dimensions it keeps one number for each row and column, of any other one
    for each number. `eps` is torch's `(eps1, eps2)`: None is the element type's machine epsilon. The rate
    `lr` bounds the relative step, as in torch. `schedule`, `no_decay`, `groups` and `ema` are as in `AdamW`.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float = 1e-2
    beta2_decay: float = -0.8
    eps: tuple[float | None, float] = (None, 1e-3)
    d: float = 1.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        require_number("beta2_decay", self.beta2_decay, -10.0, 0.0)
        if not isinstance(self.eps, tuple) or len(self.eps) != 2:
            raise ValueError(f"eps must be a tuple of two numbers, found {self.eps!r}")
        for number in self.eps if self.eps[0] is not None else self.eps[1:]:
            require_number("eps", number, 0.0)
        require_number("d", self.d, 1.0)
        require_number("weight_decay", self.weight_decay, 0.0)
        self._check()

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number, at most (unless a dimension is 1)."""
        return 1 + self._beside


class Muon(_Declared, frozen=True, forbid_unknown_fields=True, tag=True):
    """`torch.optim.Muon` for matrices, and `others` for every other parameter.

    The update of a matrix is its momentum, made orthogonal by Newton and Schulz's iteration in bfloat16. Each
    matrix is updated where it is owned, so nothing crosses the network for it.

    Parameters
    ----------
    lr, weight_decay, momentum, nesterov, eps, ns_coefficients, ns_steps, adjust_lr_fn
        As in torch. With `adjust_lr_fn="match_rms_adamw"` AdamW's rate and weight decay fit.
    others
        Of parameters that do not have two dimensions, and of those that match `excluded`.
    excluded
        Patterns of names as in `Group`. Muon is meant for hidden layers: name the embedding and the head.
    schedule, no_decay, groups
        As in `AdamW`, for the matrices; `others` has its own.

    Raises
    ------
    ValueError
        A number is not finite or out of its range; from the wire, `msgspec.ValidationError`.
    """

    lr: float
    others: AdamW = None  # type: ignore[assignment]  # needed; without it, the message below says so
    weight_decay: float = 0.1
    momentum: float = 0.95
    nesterov: bool = True
    eps: float = 1e-7
    ns_coefficients: tuple[float, float, float] = (3.4445, -4.7750, 2.0315)
    ns_steps: int = 5
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = "original"
    excluded: Patterns = ()

    def __post_init__(self) -> None:
        require_number("lr", self.lr, 0.0)
        if self.others is None:
            raise ValueError(
                "Muon updates matrices only: give it others=farflung.AdamW(...) for all other parameters"
            )
        if not isinstance(self.others, AdamW):
            raise ValueError(f"others must be farflung.AdamW(...), found {self.others!r:.60}")
        require_number("weight_decay", self.weight_decay, 0.0)
        require_number("momentum", self.momentum, 0.0, 1.0, below=True)
        require_number("eps", self.eps, 0.0)
        if not isinstance(self.ns_coefficients, tuple) or len(self.ns_coefficients) != 3:
            raise ValueError(
                f"ns_coefficients must be a tuple of three numbers, found {self.ns_coefficients!r}"
            )
        for number in self.ns_coefficients:
            require_number("ns_coefficients", number, -100.0, 100.0)
        require_whole("ns_steps", self.ns_steps, 1, 99)
        if self.adjust_lr_fn not in ("original", "match_rms_adamw"):
            raise ValueError(
                f"adjust_lr_fn must be 'original' or 'match_rms_adamw', found {self.adjust_lr_fn!r}"
            )
        make_patterns(self, "excluded")
        self._check()
        given = {"diloco": self.diloco} | ({} if self.others.ema is not None else {"ema": self.ema})
        msgspec.structs.force_setattr(self, "others", msgspec.structs.replace(self.others, **given))
        if self.others.ema != self.ema:
            raise ValueError(
                f"ema of others is that of Muon, {self.ema}: leave it out, found {self.others.ema}"
            )

    @property
    def moments(self) -> int:
        """Numbers kept for each trained number, at most."""
        return self.others.moments


Optimizer = AdamW | SGD | Lion | Adafactor | Muon


class Recipe(NamedTuple):
    """How one parameter is updated: by the rule of `declared`, but with these numbers."""

    declared: Optimizer
    lr_scale: float
    weight_decay: float

    def rate(self, step: int) -> float:
        """The learning rate of step `step`, counted from 0."""
        return learning_rate(self.declared, step) * self.lr_scale


def recipe_of(optimizer: Optimizer, name: str, shape: Sequence[int]) -> Recipe:
    """How the parameter `name` of `shape` is updated."""
    if isinstance(optimizer, Muon) and (len(shape) != 2 or _matches(name, optimizer.excluded)):
        return recipe_of(optimizer.others, name, shape)
    group = next((group for group in optimizer.groups if _matches(name, group.names)), None)
    decay = optimizer.weight_decay
    if len(shape) < 2 if optimizer.no_decay == "auto" else _matches(name, optimizer.no_decay):
        decay = 0.0
    if group is None:
        return Recipe(optimizer, 1.0, decay)
    return Recipe(optimizer, group.lr_scale, decay if group.weight_decay is None else group.weight_decay)


def learning_rate(optimizer: Optimizer, step: int) -> float:
    """The learning rate of step `step`, counted from 0."""
    return optimizer.lr * optimizer.schedule.ratio(step)


def unmatched_pattern(optimizer: Optimizer, names: Iterable[str]) -> str | None:
    """A pattern of the declaration that fits none of the parameters `names`; None if each fits one."""
    known = list(names)
    return next((pattern for pattern in _patterns(optimizer) if not _any_matches(known, pattern)), None)


def _patterns(optimizer: Optimizer) -> list[str]:
    found = [] if optimizer.no_decay == "auto" else list(optimizer.no_decay)
    found += [pattern for group in optimizer.groups for pattern in group.names]
    if isinstance(optimizer, Muon):
        found += [*optimizer.excluded, *_patterns(optimizer.others)]
    return found


def _any_matches(names: Iterable[str], pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in names)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def require_betas(betas: object) -> None:
    """Raise ValueError unless they are two numbers from 0 to below 1."""
    if not isinstance(betas, tuple) or len(betas) != 2:
        raise ValueError(f"betas must be a tuple of two numbers, found {betas!r}")
    for beta in betas:
        require_number("betas", beta, 0.0, 1.0, below=True)


def make_patterns(declared: msgspec.Struct, field: str) -> None:
    """Make the field a tuple of patterns, from one of them or a list; raises ValueError if it is neither."""
    given = getattr(declared, field)
    made = (given,) if isinstance(given, str) else given
    if not isinstance(made, tuple | list) or len(made) > MOST_PATTERNS:
        raise ValueError(f"{field} must be patterns of names such as 'head.*', found {given!r:.60}")
    for pattern in made:
        if not isinstance(pattern, str) or not 0 < len(pattern) <= 256:
            raise ValueError(f"{field} must be patterns of 1 to 256 characters, found {pattern!r:.60}")
    msgspec.structs.force_setattr(declared, field, tuple(made))


def is_optimizer(value: object) -> bool:
    """Whether it is one of the declarations above."""
    return isinstance(value, get_args(Optimizer))
