"""Batches of references: small ones, however long the names in the raw data are."""

import itertools
import tracemalloc

import pytest

from beam_jobs.rows.references import File, Reference, bounded
from converters.images.image_records import in_batches
from pipeline.storage.storage import Stat

MIB = 2**20
FILE = File("raw.tar", Stat(1))


def rows(name_lengths, error_length=0):
    for number, length in enumerate(name_lengths):
        yield Reference(
            f"{number:06d}".ljust(length, "x"), FILE, 0, 1, "e" * error_length, {"label": number}
        )


def test_references_with_short_names_come_in_batches_of_4096():
    assert [len(batch) for batch in in_batches(rows([40] * 10_000))] == [4096, 4096, 1808]
    assert list(in_batches(rows([]))) == []


@pytest.mark.parametrize(
    "lengths", [[4000] * 700, [6] * 500 + [4000] + [6] * 500, [6, 4000] * 300, [100_000] * 150]
)
@pytest.mark.parametrize("error_length", [0, 3000])
def test_a_batch_of_long_names_or_errors_takes_a_mebibyte(lengths, error_length):
    batches = list(in_batches(rows(lengths, error_length)))
    assert max(len(batch) * (batch.key.itemsize + batch.error.itemsize) for batch in batches) <= MIB
    found = [row for batch in batches for row in batch]
    assert found == [bounded(row) for row in rows(lengths, error_length)]
    assert all(len(a) + len(b) > 100 for a, b in itertools.pairwise(batches))  # not a row a batch


def test_names_of_many_bytes_are_cut_before_the_next_is_taken():
    tracemalloc.start()
    try:
        assert sum(map(len, in_batches(rows([MIB] * 100)))) == 100
        assert tracemalloc.get_traced_memory()[1] < 8 * MIB
    finally:
        tracemalloc.stop()
