"""Elements between two stages of a job, in this process. A pipeline of Beam has the same methods:
see graph."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from pipeline.storage.storage import in_parallel

Stage = Callable[..., Iterable[Any]]
"""A function of an element, and of what else it is given, that yields others."""


@dataclass(frozen=True)
class Flow:
    """Elements. at_once: how many of them a stage takes at the same time."""

    elements: Any
    at_once: int = 1

    def each(self, stage: Stage, *given: Any) -> "Flow":
        """What a stage makes of each element. given: those of Flows reach it as mappings."""
        sides = [dict(side.elements) if isinstance(side, Flow) else side for side in given]
        made = in_parallel(lambda each: [*stage(each, *sides)], self.elements, self.at_once)
        return replace(self, elements=[*itertools.chain.from_iterable(made)])

    def spread(self) -> "Flow":
        """The same elements, on all workers."""
        return self

    def by_key(self, name: str) -> "Flow":
        """Of pairs: (key, its values) for each key. name: of the step in a pipeline."""
        del name
        grouped = defaultdict[Any, list[Any]](list)
        for key, value in self.elements:
            grouped[key].append(value)
        return replace(self, elements=[*grouped.items()])

    def per_key(self, name: str, combine: Callable[[Iterable[Any]], Any]) -> "Flow":
        """Of pairs: (key, what its values are combined to) for each key."""
        grouped = self.by_key(name).elements
        return replace(self, elements=[(key, combine(values)) for key, values in grouped])
