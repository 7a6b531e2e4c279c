"""An optax optimizer from its settings."""

from collections.abc import Hashable
from typing import Any

import optax

from trainer.batch_spec import named_leaves
from trainer.optimizers.config import OptimizerConfig, Run
from trainer.optimizers.groups import Group, check_patterns, group_tree
from trainer.optimizers.schedules import learning_rate

__all__ = ["make_optimizer"]

TRAINED, FROZEN = "trained", "frozen"


def make_optimizer(config: OptimizerConfig, run: Run | None) -> optax.GradientTransformation:
    """The optimizer of these settings for such a run. None: not for training, only for the state in its checkpoints.

    Its init raises OptionError for a pattern that matches no parameter. Frozen parameters have no statistics and do not
    count for clip_norm. Raises OptionError for a warm-up that is longer than the run."""
    parts = [optax.clip_by_global_norm(config.clip_norm)] if config.clip_norm is not None else []
    parts.append(_rule(config, learning_rate(config, run) if run else optax.constant_schedule(config.learning_rate)))
    if config.rates:
        parts.append(optax.stateless(lambda updates, _: _scaled(config, updates)))
    whole = optax.chain(*parts)
    if config.freeze:
        kinds: dict[Hashable, optax.GradientTransformation] = {TRAINED: whole, FROZEN: optax.set_to_zero()}
        whole = optax.partition(kinds, lambda params: group_tree(config, params, _kind))

    def init(params: Any) -> Any:
        if names := named_leaves(params).keys():  # none, where optax asks which statistics are like parameters
            check_patterns(config, names)
        return whole.init(params)

    return optax.GradientTransformation(init, whole.update)


def _rule(config: OptimizerConfig, rate: optax.Schedule) -> optax.GradientTransformation:
    def decayed(params: Any) -> Any:
        return group_tree(config, params, lambda group: group.decays)

    betas, decay = (config.beta1, config.beta2), config.weight_decay
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
            return optax.chain(optax.add_decayed_weights(decay, decayed), momentum) if decay else momentum


def _kind(group: Group) -> str:
    return TRAINED if group.rate else FROZEN


def _scaled(config: OptimizerConfig, updates: Any) -> Any:
    rates = group_tree(config, updates, lambda group: group.rate)
    return optax.tree.mul(updates, rates)
