"""The learning rate by step, in float32: a linear warm-up, then a fall to the last step."""

import math

import optax

from pipeline.errors import OptionError
from trainer.optimizers.config import OptimizerConfig, Run, steps_of

__all__ = ["highest_rate", "learning_rate"]


def highest_rate(config: OptimizerConfig, run: Run) -> float:
    """learning_rate for this run's batch size, by the config's rule of scaling."""
    ratio = run.global_batch_size / config.base_batch_size
    return config.learning_rate * {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[config.scaling]


def learning_rate(config: OptimizerConfig, run: Run) -> optax.Schedule:
    """Maps finished steps to the learning rate of the next. Raises OptionError if the warm-up is too long."""
    highest, warmup = highest_rate(config, run), steps_of(config.warmup, run)
    if warmup >= run.max_steps and config.schedule != "constant":
        raise OptionError(
            f"warmup={config.warmup!r} takes {warmup} steps, but the training has {run.max_steps}. Shorten it."
        )
    after = _after_warmup(config, run, highest, warmup)
    return optax.join_schedules([optax.linear_schedule(0.0, highest, warmup), after], [warmup]) if warmup else after


def _after_warmup(config: OptimizerConfig, run: Run, highest: float, warmup: int) -> optax.Schedule:
    steps, lowest = run.max_steps - warmup, highest * config.final_rate
    match config.schedule:
        case "constant":
            return optax.constant_schedule(highest)
        case "cosine":
            return optax.cosine_decay_schedule(highest, steps, config.final_rate)
        case "linear":
            return optax.linear_schedule(highest, lowest, steps)
        case "polynomial":
            return optax.polynomial_schedule(highest, lowest, config.decay_power, steps)
        case "step":
            marks = [steps_of(length, run) - warmup for length in config.decay_at]
            return optax.piecewise_constant_schedule(highest, dict.fromkeys(marks, config.decay_factor))
