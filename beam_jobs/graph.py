"""How the elements of a job get from stage to stage: in lists of this process, or in a pipeline of
Beam."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from beam_jobs import stages, survey
from beam_jobs.converter import ConversionJob
from beam_jobs.stored_job import StoredJob
from pipeline.storage.storage import in_parallel

_MOST_SHARES = 1000
Stage = Callable[..., Iterable[Any]]
"""A function of an element, and of what else it is given, that yields others."""


@dataclass(frozen=True)
class Flow:
    """Elements between two stages, in lists. at_once: how many a stage takes at the same time."""

    elements: Any
    at_once: int = 1

    def each(self, stage: Stage, *given: Any) -> "Flow":
        """What a stage makes of each element. given: those of Flows reach it as mappings."""
        sides = [dict(side.elements) if isinstance(side, Flow) else side for side in given]

        def results(element: Any) -> list[Any]:
            return [*stage(element, *sides)]

        if self.at_once > 1:
            made = in_parallel(results, self.elements, self.at_once)
        else:  # none begins after one that fails
            made = map(results, self.elements)
        return replace(self, elements=[*itertools.chain.from_iterable(made)])

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


@dataclass(frozen=True)
class _Collection(Flow):
    """A Flow in a pipeline. elements: a PCollection. beam: the package, which dry runs work
    without."""

    beam: Any = None

    def each(self, stage: Stage, *given: Any) -> Flow:
        """See Flow."""
        as_dict = self.beam.pvalue.AsDict
        sides = [as_dict(side.elements) if isinstance(side, Flow) else side for side in given]
        return self._then(stage.__name__, self.beam.FlatMap(stage, *sides))

    def by_key(self, name: str) -> Flow:
        """See Flow."""
        return self._then(name, self.beam.GroupByKey())

    def per_key(self, name: str, combine: Callable[[Iterable[Any]], Any]) -> Flow:
        """See Flow."""
        return self._then(name, self.beam.CombinePerKey(combine))

    def _then(self, name: str, step: Any) -> Flow:
        return replace(self, elements=self.elements | name >> step)


def pipeline_of(job: ConversionJob, options: Any) -> Any:
    """The Beam pipeline of a job. Writes what workers need to know of the job, if it is large."""
    import apache_beam as beam

    pipeline = beam.Pipeline(options=options)
    # few, as they are in the graph; several, as Dask does not spread what one of them gives
    shares = [range(job.num_elements)[number::_MOST_SHARES] for number in range(_MOST_SHARES)]
    numbers = (
        pipeline | "shares" >> beam.Create([*filter(len, shares)]) | "numbers" >> beam.FlatMap(list)
    )
    start = _Collection(numbers | "spread" >> beam.Reshuffle(), beam=beam)
    chain = survey.looked if isinstance(job, survey.Survey) else stages.converted
    chain(start, StoredJob.of(job))
    return pipeline
