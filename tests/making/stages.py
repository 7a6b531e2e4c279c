"""A conversion without Beam, for tests whose subject is a converter or the commit and not the runner."""

import contextlib
import pickle
from collections import defaultdict
from unittest import mock

from beam_jobs import graph, survey
from beam_jobs.plan import add_sums, lowest


class Stages:
    """In place of a Beam pipeline: runs the stages of a conversion one after the other, each by its own function."""

    def __init__(self, job, options):
        self.job = pickle.loads(pickle.dumps(job))  # workers get a copy

    def run(self):
        if isinstance(self.job, survey.Survey):
            for element in self.job.elements:
                survey.look(element, self.job)
            return self
        scanned = self._all(graph._scan, graph._groups(self.job))
        sums = {key: add_sums(values) for key, values in by_key(self._all(graph._measure, scanned))}
        sampled = {}
        if self.job.converter.transforms:
            offered = [
                (key, lowest(values)) for key, values in by_key(self._all(graph._offer, scanned))
            ]
            sampled = dict(self._all(graph._sample, offered))
        assigned = self._all(graph._assign, by_key(scanned), sums, sampled)
        gathered = self._all(graph._gather, by_key(assigned), sums, sampled)
        counted = [made for element in by_key(gathered) for made in graph._count(element)]
        self._all(graph._commit, by_key(counted), sums, sampled)
        return self

    def wait_until_finish(self):
        pass

    def _all(self, stage, elements, *sides):
        return [made for element in elements for made in stage(element, self.job, *sides)]


def without_beam() -> contextlib.AbstractContextManager[object]:
    """Conversions of this process in the block run without Beam: for the rerun whose first run is the subject."""
    return mock.patch.object(graph, "pipeline_of", Stages)


def by_key(pairs):
    """[(key, [its values])]: what a GroupByKey makes of them."""
    grouped = defaultdict(list)
    for key, value in pairs:
        grouped[key].append(value)
    return list(grouped.items())
