"""Passes the elements of a job from stage to stage: in lists of this process, or in a Beam
pipeline."""

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
"""Takes an element and further arguments, and yields elements for the next stage."""


@dataclass(frozen=True)
class Flow:
    """Elements between two stages, in lists. at_once: how many of them a stage processes
    concurrently."""

    elements: Any
    at_once: int = 1

    def each(self, stage: Stage, *given: Any) -> "Flow":
        """The elements that a stage yields. given: its further arguments; a Flow of pairs becomes a
        mapping."""
        sides = [dict(side.elements) if isinstance(side, Flow) else side for side in given]

        def results(element: Any) -> list[Any]:
            return [*stage(element, *sides)]

        if self.at_once > 1:
            made = in_parallel(results, self.elements, self.at_once)
        else:  # none begins after one that fails
            made = map(results, self.elements)
        return replace(self, elements=[*itertools.chain.from_iterable(made)])

    def by_key(self, name: str) -> "Flow":
        """Groups pairs: (key, its values) for each key. name: of the step in a pipeline."""
        del name
        grouped = defaultdict[Any, list[Any]](list)
        for key, value in self.elements:
            grouped[key].append(value)
        return replace(self, elements=[*grouped.items()])

    def per_key(self, name: str, combine: Callable[[Iterable[Any]], Any]) -> "Flow":
        """Reduces pairs: (key, its combined values) for each key."""
        grouped = self.by_key(name).elements
        return replace(self, elements=[(key, combine(values)) for key, values in grouped])


@dataclass(frozen=True)
class _Collection(Flow):
    """A Flow in a pipeline. elements: a PCollection. beam: the package, which dry runs do not
    need."""

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
    """The Beam pipeline of a job. Writes a large job to a file for its workers."""
    import apache_beam as beam

    stored = StoredJob.of(job)
    pipeline = beam.Pipeline(options=options)
    # few, because the graph contains them; several, because Dask does not distribute the results
    # of a single one
    shares = [range(job.num_elements)[number::_MOST_SHARES] for number in range(_MOST_SHARES)]
    numbers = (
        pipeline | "shares" >> beam.Create([*filter(len, shares)]) | "numbers" >> beam.FlatMap(list)
    )
    start = _Collection(numbers | "spread" >> beam.Reshuffle(), beam=beam)
    chain = survey.looked if isinstance(job, survey.Survey) else stages.converted
    chain(start, stored)
    return pipeline
