"""The flags --mesh and --partition: sizes of the mesh's axes, and how parameters are split over them. Stdlib only."""

import re
from collections.abc import Iterable

from pipeline.errors import OptionError

DATA, FSDP, MODEL = AXES = ("data", "fsdp", "model")
SIZE = re.compile(r"\b(data|fsdp|model)=([1-9][0-9]*)\b")
Rule = tuple[str, tuple[tuple[str, ...], ...]]
"""A pattern of the paths of parameters, and for each of their dimensions the axes that split it."""


def axis_sizes(mesh: str | None) -> dict[str, int]:
    """The size of each axis that is given. Raises OptionError for another form than data=2,fsdp=4."""
    sizes = {axis: int(size) for axis, size in SIZE.findall(mesh or "")}
    if mesh is not None and ",".join(f"{axis}={size}" for axis, size in sizes.items()) != mesh:
        raise OptionError(f"mesh={mesh!r} is not of the form data=2,fsdp=4: give data, fsdp and model at most once.")
    return sizes


def partition_rules(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Of PATTERN=AXES, such as head/kernel=fsdp,model. Raises OptionError for another form and for other axes."""
    rules = []
    for text in texts:
        pattern, equals, axes = text.rpartition("=")
        split = tuple(() if part in ("", "None") else tuple(part.split("+")) for part in axes.split(",") if axes)
        if not (pattern and equals) or not set(AXES).issuperset(axis for part in split for axis in part):
            raise OptionError(
                f"partition={text!r} is not PATTERN=AXES. Give data, fsdp, model or None for each dimension, as in "
                "'head/kernel=fsdp,model', or nothing for a complete copy: 'norm/*='."
            )
        rules.append((pattern, split))
    return tuple(rules)
