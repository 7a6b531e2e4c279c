"""An optax optimizer from its settings, and the learning rate by step: a linear warm-up, then a
fall."""

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, NamedTuple

import jax
import optax

from pipeline.checks import check_patterns, matches
from pipeline.errors import OptionError
from trainer.mesh.batch_spec import named_leaves, path_name
from trainer.optimizers.config import OptimizerConfig, Run, steps_of

__all__ = ["ParameterGroup", "groups_of", "make_optimizer"]

TRAINED, FROZEN = "trained", "frozen"


class ParameterGroup(NamedTuple):
    """How a parameter is updated. rate: the factor of its learning rate, 0.0 if it is frozen.
    decays: whether it has weight decay, if there is any, and a trust ratio in lars."""

    rate: float
    decays: bool


def make_optimizer(config: OptimizerConfig, run: Run | None) -> optax.GradientTransformation:
    """The optimizer of these settings for such a run. None: not for training, only for the state in
    its checkpoints.

    Its init raises OptionError for a pattern that matches no parameter. Frozen parameters have no
    statistics and do not count for clip_norm. Raises OptionError for a warm-up that is longer than
    the run."""
    parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm is not None else []
    rate = learning_rate(config, run) if run else optax.constant_schedule(config.learning_rate)
    # Injected, the rate of the last step is in the state, where train_step finds it.
    parts.append(
        optax.inject_hyperparams(lambda learning_rate: _rule(config, learning_rate))(
            learning_rate=rate
        )
    )
    rates = partial(_group_tree, config, lambda group: group.rate)
    if config.rates:
        parts.append(optax.stateless(lambda updates, _: optax.tree.mul(updates, rates(updates))))
    optimizer = optax.chain(*parts)
    if config.freeze:
        kinds = partial(_group_tree, config, lambda group: TRAINED if group.rate else FROZEN)
        optimizer = optax.partition({TRAINED: optimizer, FROZEN: optax.set_to_zero()}, kinds)

    def init(params: Any) -> Any:
        # none, where optax asks which statistics are like parameters
        if names := named_leaves(params).keys():
            patterns = (*config.freeze, *config.no_decay, *(pattern for pattern, _ in config.rates))
            check_patterns(patterns, names, "parameter")
        return optimizer.init(params)

    return optax.GradientTransformation(init, optimizer.update)


def learning_rate(config: OptimizerConfig, run: Run) -> optax.Schedule:
    """Maps finished steps to the learning rate of the next. Raises OptionError if the warm-up is
    too long."""
    ratio = run.global_batch_size / config.base_batch_size
    scales = {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}
    highest = config.learning_rate * scales[config.scaling]
    warmup = steps_of(config.warmup, run)
    if warmup >= run.max_steps and config.schedule != "constant":
        raise OptionError(
            f"warmup={config.warmup!r} takes {warmup} steps, but the run has {run.max_steps}. "
            "Shorten it."
        )
    steps = run.max_steps - warmup
    lowest = highest * config.final_rate
    match config.schedule:
        case "constant":
            after = optax.constant_schedule(highest)
        case "cosine":
            after = optax.cosine_decay_schedule(highest, steps, config.final_rate)
        case "linear":
            after = optax.linear_schedule(highest, lowest, steps)
        case "polynomial":
            after = optax.polynomial_schedule(highest, lowest, config.decay_power, steps)
        case "step":
            marks = [steps_of(length, run) - warmup for length in config.decay_at]
            factors = dict.fromkeys(marks, config.decay_factor)
            after = optax.piecewise_constant_schedule(highest, factors)
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, highest, warmup), after], [warmup])


def _rule(config: OptimizerConfig, rate: Any) -> optax.GradientTransformation:
    decayed = partial(_group_tree, config, lambda group: group.decays)
    betas = (config.beta1, config.beta2)
    decay = config.weight_decay
    match config.optimizer:
        case "adamw":
            return optax.adamw(rate, *betas, config.epsilon, weight_decay=decay, mask=decayed)
        case "lamb":
            return optax.lamb(rate, *betas, config.epsilon, weight_decay=decay, mask=decayed)
        case "lion":
            return optax.lion(rate, *betas, weight_decay=decay, mask=decayed)
        case "lars":
            return optax.lars(
                rate,
                decay,
                weight_decay_mask=decayed,
                trust_coefficient=config.trust,
                trust_ratio_mask=decayed,
                momentum=config.momentum,
                nesterov=config.nesterov,
            )
        case "sgd":
            momentum = optax.sgd(rate, config.momentum or None, config.nesterov)
            if not decay:
                return momentum
            return optax.chain(optax.add_decayed_weights(decay, decayed), momentum)


def groups_of(
    config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, ParameterGroup]:
    """The group of each parameter, from its path and shape."""
    return {name: _group(config, name, len(shape)) for name, shape in shapes.items()}


def _group_tree(
    config: OptimizerConfig, of_group: Callable[[ParameterGroup], Any], params: Any
) -> Any:
    """A tree like `params` with what of_group returns for the group of each."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: of_group(_group(config, path_name(path), len(leaf.shape))), params
    )


def _group(config: OptimizerConfig, name: str, dimensions: int) -> ParameterGroup:
    if matches(name, config.freeze):
        return ParameterGroup(0.0, False)
    rate = next((factor for pattern, factor in config.rates if fnmatchcase(name, pattern)), 1.0)
    decays = (dimensions > 1 or config.decay_all) and not matches(name, config.no_decay)
    return ParameterGroup(rate, decays)
