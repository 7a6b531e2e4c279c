"""Which parameters are trained, decayed and at which rate: from patterns of their paths."""

from collections.abc import Callable, Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import jax

from pipeline.errors import OptionError, did_you_mean
from trainer.batch_spec import named_leaves, path_name
from trainer.optimizers.config import OptimizerConfig

__all__ = ["Group", "check_patterns", "group_tree", "groups_of"]


class Group(NamedTuple):
    """How a parameter is updated. rate: the factor of its learning rate, 0.0 if it is frozen. decays: whether it has
    weight decay, if there is any, and a trust ratio in lars."""

    rate: float
    decays: bool


def check_patterns(config: OptimizerConfig, names: Collection[str]) -> None:
    """Raises OptionError for a pattern that matches none of these parameters."""
    for pattern in (*config.freeze, *config.no_decay, *(pattern for pattern, _ in config.rates)):
        if not any(fnmatchcase(name, pattern) for name in names):
            raise OptionError(f"the pattern {pattern!r} matches no parameter.{did_you_mean(pattern, names)}")


def groups_of(config: OptimizerConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Group]:
    """The group of each parameter, from its path and shape."""
    return {name: _group(config, name, len(shape)) for name, shape in shapes.items()}


def group_tree(config: OptimizerConfig, params: Any, of_group: Callable[[Group], Any]) -> Any:
    """A tree like `params` with what of_group returns for the group of each."""
    groups = groups_of(config, {name: leaf.shape for name, leaf in named_leaves(params).items()})
    return jax.tree_util.tree_map_with_path(lambda path, _: of_group(groups[path_name(path)]), params)


def _group(config: OptimizerConfig, name: str, dimensions: int) -> Group:
    if _matches(name, config.freeze):
        return Group(0.0, False)
    rate = next((factor for pattern, factor in config.rates if fnmatchcase(name, pattern)), 1.0)
    decays = (dimensions > 1 or config.decay_all) and not _matches(name, config.no_decay)
    return Group(rate, decays)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)
