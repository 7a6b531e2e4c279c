"""What the caches' tests count."""

import pytest

from pipeline.storage.local import LocalStorage


@pytest.fixture
def source_reads(monkeypatch):
    """All ranges that are read, but for those of a cache, when nothing is read for the sake of its neighbours only."""
    # the records are small
    monkeypatch.setattr("pipeline.sources.indexed_records.MERGE_GAP_BYTES", 0)
    asked, read_ranges = [], LocalStorage.read_ranges

    def counting(self, ranges):
        for place in ranges:
            if not place[0].endswith("/records"):
                asked.append(place)
            yield from read_ranges(self, [place])

    monkeypatch.setattr(LocalStorage, "read_ranges", counting)
    return asked
