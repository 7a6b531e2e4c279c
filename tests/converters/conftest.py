"""What the converters' tests share: a table to fill, and conversions without Beam."""

import pickle
from collections import defaultdict

import pytest

from beam_jobs import graph
from beam_jobs.sample import lowest
from beam_jobs.sums import add_sums


@pytest.fixture
def table(tmp_path):
    """table("train.csv", text): written into the raw directory."""

    def write(name, text):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return write


class _Chain:
    """Runs the stages of a conversion's graph one after the other, each by its own function, as Beam would."""

    def __init__(self, job, options):
        self.job = pickle.loads(pickle.dumps(job))  # workers get a copy

    def run(self):
        scanned = self._all(graph._Scan, graph._groups(self.job))
        sums = {key: add_sums(values) for key, values in by_key(self._all(graph._Measure, scanned))}
        sampled = {}
        if self.job.converter.transforms:
            offered = [(key, lowest(values)) for key, values in by_key(self._all(graph._Offer, scanned))]
            sampled = dict(self._all(graph._Sample, offered))
        assigned = self._all(graph._Assign, by_key(scanned), sums, sampled)
        gathered = self._all(graph._Gather, by_key(assigned), sums, sampled)
        self._all(graph._Commit, by_key(gathered), sums, sampled)
        return self

    def wait_until_finish(self):
        pass

    def _all(self, stage, elements, *sides):
        function = stage(self.job)
        return [made for element in elements for made in function.process(element, *sides)]


def by_key(pairs):
    grouped = defaultdict(list)
    for key, value in pairs:
        grouped[key].append(value)
    return list(grouped.items())


@pytest.fixture
def without_beam(monkeypatch):
    """Conversions in this process take 0.05 s instead of 0.6 s. test_contract compares their bytes with those that
    Beam writes, for every converter."""
    monkeypatch.setattr(graph, "pipeline_of", _Chain)
