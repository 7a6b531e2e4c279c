"""The Beam graph of a job."""

from collections.abc import Callable, Iterable
from typing import Any

import apache_beam as beam
from apache_beam import pvalue

from beam_jobs import stages, survey
from beam_jobs.converter import ConversionJob
from beam_jobs.flow import Flow, Stage
from beam_jobs.stored_job import StoredJob


class _Collection(Flow):
    """A Flow in a pipeline. elements: a PCollection."""

    def each(self, stage: Stage, *given: Any) -> Flow:
        """See Flow."""
        sides = [pvalue.AsDict(side.elements) if isinstance(side, Flow) else side for side in given]
        return _Collection(self.elements | stage.__name__ >> beam.FlatMap(stage, *sides))

    def spread(self) -> Flow:
        """See Flow."""
        return _Collection(self.elements | "spread" >> beam.Reshuffle())

    def by_key(self, name: str) -> Flow:
        """See Flow."""
        return _Collection(self.elements | name >> beam.GroupByKey())

    def per_key(self, name: str, combine: Callable[[Iterable[Any]], Any]) -> Flow:
        """See Flow."""
        return _Collection(self.elements | name >> beam.CombinePerKey(combine))


def pipeline_of(job: ConversionJob, options: Any) -> beam.Pipeline:
    """A pipeline that converts all splits of a job, or makes a survey. Writes what workers need to
    know of the job, if it is large."""
    pipeline = beam.Pipeline(options=options)
    start = _Collection(pipeline | "start" >> beam.Create([None]))
    chain = survey.looked if isinstance(job, survey.Survey) else stages.converted
    chain(start, StoredJob.of(job))
    return pipeline
