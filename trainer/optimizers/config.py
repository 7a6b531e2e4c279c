"""The settings of an optimizer, as flags, but for those that are Fixed: a recipe sets them."""

import math
import re
from dataclasses import dataclass
from typing import Literal, get_args, get_origin, get_type_hints

from tyro.conf import Fixed

from pipeline.checks import check_choice, check_number
from pipeline.console.fields import shows_fields
from pipeline.errors import OptionError

__all__ = ["OptimizerConfig", "OptimizerName", "Run", "steps_of"]

OptimizerName = Literal["adamw", "sgd", "lamb", "lars", "lion"]
"""See OptimizerConfig.optimizer."""
Schedule = Literal["constant", "cosine", "linear", "polynomial", "step"]
Scaling = Literal["none", "linear", "sqrt"]
LENGTH = re.compile(r"(\d+(?:\.\d+)?)(%|)")
FACTOR = re.compile(r"([^=]+)=(\d+(?:\.\d+)?(?:e-?\d+)?)")


@dataclass(frozen=True)
class Run:
    """What lengths and scaling rules refer to: max_steps, at which training ends, and its
    global_batch_size."""

    max_steps: int
    global_batch_size: int


@shows_fields
@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Which optimizer, with which learning rate: a field of a recipe, whose fields become flags.

    Patterns such as "backbone/*" match the paths of parameters, which --show-state lists."""

    optimizer: OptimizerName = "adamw"
    """The rule of the updates. sgd and lars have momentum and add the weight decay to the gradient;
    the others subtract it from the parameters."""
    learning_rate: float = 1e-3
    """The highest learning rate, which the warm-up reaches."""
    scaling: Scaling = "none"
    """Scale the learning rate with the batch size. linear: multiply it by global_batch_size /
    base_batch_size. sqrt: by the square root of that."""
    base_batch_size: Fixed[int] = 256
    """The batch size for which learning_rate is given, if it is scaled."""
    schedule: Schedule = "cosine"
    """How the learning rate falls after the warm-up, to final_rate at the last step. step: by
    decay_factor at each of decay_at."""
    warmup: str = "10%"
    """How long it rises linearly from 0: steps ("500"), or a share of the run ("10%")."""
    final_rate: float = 0.0
    """The learning rate at the end of the schedule, as a share of the highest."""
    decay_power: Fixed[float] = 2.0
    """The power of the polynomial schedule."""
    decay_at: tuple[str, ...] = ()
    """When the step schedule lowers the learning rate: steps or shares, as for warmup."""
    decay_factor: Fixed[float] = 0.1
    """By what the step schedule multiplies it."""
    weight_decay: float = 0.0
    """Weight decay of the parameters with two or more dimensions: not of biases and norms."""
    decay_all: Fixed[bool] = False
    """Weight decay of all parameters."""
    no_decay: Fixed[tuple[str, ...]] = ()
    """Patterns of parameters without weight decay."""
    rate_of: tuple[str, ...] = ()
    """Factors of the learning rate of some parameters: "backbone/*=0.1". The first pattern that
    matches counts."""
    freeze: tuple[str, ...] = ()
    """Patterns of parameters that are not trained."""
    clip_norm: float | None = None
    """Scale the gradient down to this L2 norm over all trained parameters if it is longer."""
    momentum: Fixed[float] = 0.9
    """Of sgd and lars."""
    nesterov: Fixed[bool] = True
    """Nesterov's momentum, for sgd and lars."""
    beta1: Fixed[float] = 0.9
    """Decay of the mean of gradients, for adamw, lamb and lion."""
    beta2: Fixed[float] = 0.999
    """Decay of the mean of squares, for adamw and lamb; 0.99 is usual for lion."""
    epsilon: Fixed[float] = 1e-8
    """Added to the root of the mean of squares, for adamw and lamb; 1e-6 is usual for lamb."""
    trust: Fixed[float] = 0.001
    """The trust coefficient of lars."""

    def __post_init__(self) -> None:
        for name, kind in get_type_hints(type(self)).items():
            value = getattr(self, name)
            if get_origin(kind) is Literal:
                check_choice(name, value, get_args(kind))
            if kind in (float, float | None):
                check_number(name, value, at_least=0, below=math.inf)
        for name in ("momentum", "beta1", "beta2"):
            check_number(name, getattr(self, name), below=1)
        check_number("base_batch_size", self.base_batch_size, at_least=1)
        if self.clip_norm == 0:
            raise OptionError(
                "clip_norm=0 would stop training. Give a norm above 0, or leave it out."
            )
        for length in (self.warmup, *self.decay_at):
            _parsed_length(length)
        if (self.schedule == "step") != bool(self.decay_at):
            raise OptionError(
                f"schedule={self.schedule!r} with decay_at={self.decay_at}: the step schedule "
                "needs decay_at, and no other has it."
            )
        _ = self.rates

    @property
    def rates(self) -> tuple[tuple[str, float], ...]:
        """Pattern and factor of each rate_of. Raises OptionError for another form."""
        rates = []
        for text in self.rate_of:
            if (match := FACTOR.fullmatch(text)) is None:
                raise OptionError(
                    f"rate_of={text!r} must be a pattern and a factor, such as 'backbone/*=0.1'."
                )
            rates.append((match[1], float(match[2])))
        return tuple(rates)


def steps_of(length: str, run: Run) -> int:
    """The steps of a length such as "500" or "10%"."""
    number, unit = _parsed_length(length)
    return round(run.max_steps * number / 100) if unit else int(number)


def _parsed_length(length: str) -> tuple[float, str]:
    match = LENGTH.fullmatch(length) if isinstance(length, str) else None
    if match is None or (not match[2] and "." in match[1]):
        raise OptionError(
            f"{length!r} is not a length. Give steps, as '500', or a share of the run, as '10%'."
        )
    return float(match[1]), match[2]
