"""The flags of a recipe that people use most, in groups: what --help shows. --help-all shows every flag."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, is_dataclass, make_dataclass
from typing import Any, get_type_hints

from trainer.recipe import DataRecipe, Recipe

OF_THE_RECIPE = "recipe"
TRAINING = [
    "workdir",
    "max_steps",
    "global_batch_size",
    "iterations_per_loop",
    "learning_rate",
    "optimizer",
    "schedule",
    "weight_decay",
    "precision",
    "init_from",
    "checkpoint_every_steps",
    "keep_best",
    "seed",
]
GROUPS: Mapping[str, Sequence[str]] = {
    "data": ("data_dir", "train_split", "eval_split", "tiny"),
    OF_THE_RECIPE: (),
    "training": TRAINING,
    "mode": ("mode", "report", "fast_dev_run"),
}


def common_flags(recipe: type[Recipe]) -> type:
    """A dataclass with a field per group, whose fields are these flags, with the defaults and the help of the recipe's.

    The help has to be in their metadata."""
    known = {each.name: (kind, each, default) for kind, each, default in _flags(recipe, None)}
    others = {each.name for each in fields(DataRecipe)}.union(*GROUPS.values())
    own = recipe.common_fields or [each.name for each in fields(recipe) if each.name not in others]
    groups = []
    for title, names in GROUPS.items():
        chosen = [known[name] for name in (own if title == OF_THE_RECIPE else names) if name in known]
        made = [(each.name, kind, _with(default, each)) for kind, each, default in chosen]
        groups.append((title, make_dataclass(title, made, kw_only=True, namespace={"__doc__": ""})))
    return make_dataclass("Flags", groups)


def _flags(kind: type, values: Any) -> Iterator[tuple[Any, "Field[Any]", Any]]:
    """Type, field and default of each flag of a dataclass and of those in it."""
    hints = get_type_hints(kind, include_extras=True)
    for each in fields(kind):
        default = getattr(values, each.name) if values is not None else _default(each)
        if is_dataclass(hints[each.name]):
            yield from _flags(hints[each.name], default)
        else:
            yield hints[each.name], each, default


def _default(of: "Field[Any]") -> Any:
    return of.default_factory() if of.default_factory is not MISSING else of.default


def _with(default: Any, like: "Field[Any]") -> Any:
    given: Any = {} if default is MISSING else {"default_factory": lambda: default}
    return field(**given, metadata=like.metadata)
