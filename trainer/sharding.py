"""How the parameters of a model, and what an optimizer keeps of them, are split over a mesh."""

import math
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from itertools import accumulate, zip_longest
from typing import Any

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from pipeline.errors import OptionError
from trainer.batch_spec import named_leaves
from trainer.mesh import Placement, axes_of
from trainer.mesh_flags import FSDP, MODEL, Rule
from trainer.patterns import check_patterns
from trainer.task import Partition

FLOOR = 2**16  # numbers: to gather a smaller parameter costs more than to keep it


def split_parameters(params: Any, partition: Partition, placement: Placement) -> dict[str, NamedSharding]:
    """The sharding of each parameter: by the first rule that matches its name, else by `partition` and fsdp.

    Raises OptionError for a rule without a match, a partition that does not fit, and an axis that splits nothing."""
    shapes = {name: leaf.shape for name, leaf in named_leaves(params).items()}
    check_patterns((pattern for pattern, _ in placement.rules), shapes, "parameter")
    layers = stacked(shapes)

    def spec_of(name: str, shape: tuple[int, ...]) -> P:
        if (ruled := spec_by(placement.rules, name)) is not None:
            return ruled
        spec = partition(name, shape)
        return with_fsdp(spec, shape, placement, name in layers) if math.prod(shape) >= FLOOR else spec

    shardings = {name: placement.sharding(name, shape, spec_of(name, shape)) for name, shape in shapes.items()}
    used = {axis for sharding in shardings.values() for axis in axes_in(sharding.spec)}
    for axis in (FSDP, MODEL):
        if (size := placement.mesh.shape[axis]) > 1 and axis not in used:
            raise OptionError(
                f"the mesh has {axis}={size}, but no parameter is split over {axis}. Leave the axis out, or name what "
                "it splits: --partition 'PATTERN=AXES', or Task.partition."
            )
    return shardings


def spec_by(rules: Iterable[Rule], name: str) -> P | None:
    """By the first rule that matches the name of a parameter. None: no rule does."""
    return next((P(*axes) for pattern, axes in rules if fnmatchcase(name, pattern)), None)


def with_fsdp(spec: P, shape: tuple[int, ...], placement: Placement, has_layers: bool) -> P:
    """The spec with fsdp along the largest dimension that it leaves complete and that fsdp divides, if there is one.

    has_layers: the first dimension is that of layers, of which a scan takes one at a time; it stays complete."""
    parts, axes = placement.mesh.shape[FSDP], [*spec, *[None] * (len(shape) - len(spec))]
    free = [d for d in range(has_layers, len(shape)) if axes[d] is None and shape[d] % parts == 0]
    if parts == 1 or FSDP in axes_in(spec) or not free:
        return spec
    axes[max(free, key=lambda d: shape[d])] = FSDP
    return P(*axes)


def of_statistic(shape: tuple[int, ...], param: Any, placement: Placement) -> NamedSharding:
    """The sharding of what an optimizer keeps of a parameter: the parameter's.

    A factored statistic (adafactor), which lacks a dimension, is split like the others."""
    spec = param.sharding.spec
    if shape == param.shape:
        return param.sharding
    rest = iter(zip_longest(param.shape, spec))
    kept = [next((axes for size, axes in rest if size == wanted), None) for wanted in shape]
    own = P(*kept) if any(kept) else P()
    own = with_fsdp(own, shape, placement, len(shape) > 1) if FSDP in axes_in(spec) else own
    return NamedSharding(placement.mesh, own)


def axes_in(spec: P) -> set[str]:
    """The axes of a PartitionSpec."""
    return {axis for entry in spec for axis in axes_of(entry)}


def stacked(shapes: Mapping[str, tuple[int, ...]]) -> set[str]:
    """The arrays of layers that a scan applies: all arrays below some path, two or more, with the same first dimension.

    Dense layers whose kernel is square look alike, and then the kernel's other dimension is as good."""
    below: dict[str, list[str]] = {}
    for name in shapes:
        for path in accumulate(name.split("/")[:-1], "{}/{}".format):
            below.setdefault(path, []).append(name)
    alike = [names for names in below.values() if len(names) > 1 and len({shapes[name][:1] for name in names}) == 1]
    return {name for names in alike for name in names if len(shapes[name]) > 1}
