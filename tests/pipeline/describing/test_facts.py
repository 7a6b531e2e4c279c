"""Facts about records: exact while they fit into a bounded memory, a random part of the values beyond."""

from collections import Counter

import numpy as np
import pytest
from odd_names import MARKUP, RECORDS, dataset_with_markup

from pipeline.describing.facts import MOST_VALUES, Values, gathered, shard_sizes
from pipeline.shards.manifest import ShardEntry, SplitEntry, read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.local import LocalStorage


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return dataset_with_markup(tmp_path_factory.mktemp("marked"))


def reader_of(directory):
    return IndexedRecords(read_manifest(directory), "train", LocalStorage())


def test_facts_are_those_of_the_records(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS))
    assert (facts.records, facts.labels) == (RECORDS, Counter({0: 6, 1: 6}))
    assert facts.widths["image"].kept.tolist() == [90 + number for number in range(RECORDS)]
    assert set(facts.heights["image"].kept.tolist()) == {40}
    assert facts.formats == {"JPEG RGB": RECORDS}
    assert facts.sizes[MARKUP].kept.tolist() == [len(MARKUP)] * RECORDS
    assert len(facts.numbers["height"].kept) == RECORDS
    assert "label" not in facts.numbers
    assert not facts.misfits


def test_only_labels_are_counted_if_only_they_are_asked_for(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS), only_labels=True)
    assert facts.labels == {0: 6, 1: 6}
    assert not facts.numbers
    assert not facts.formats


def test_lengths_are_numbers_of_values_and_sizes_are_bytes(write_dataset, tmp_path):
    schema = Schema("lists", {"box": Feature("float32", (None,)), "tags": Feature("bytes", (None,), content="text")})
    values = [{"box": [1, 2, 3], "tags": [b"a", b"bcd"]}, {"box": [], "tags": []}]
    facts = gathered(reader_of(write_dataset(tmp_path, {"train": [values]}, schema)), np.arange(2))
    assert {key: lengths.kept.tolist() for key, lengths in facts.lengths.items()} == {"box": [3, 0], "tags": [2, 0]}
    assert facts.sizes["tags"].kept.tolist() == [1, 3]
    assert facts.numbers["box"].kept.tolist() == [1, 2, 3]


def test_segments_of_packed_text_have_lengths_without_the_padding(write_dataset, tmp_path):
    schema = Schema("packed_text", {"segment_ids": Feature("int64", (6,)), "num_bytes": Feature("int64")})
    rows = [{"segment_ids": [1, 1, 1, 2, 0, 0], "num_bytes": 4}, {"segment_ids": [1] * 6, "num_bytes": 6}]
    facts = gathered(reader_of(write_dataset(tmp_path, {"train": [rows]}, schema)), np.arange(2))
    assert facts.lengths["segments"].kept.tolist() == [3, 1, 6]
    assert set(facts.numbers) == {"num_bytes"}


def test_a_record_that_does_not_fit_the_schema_is_counted(write_dataset, tmp_path):
    written = Schema("numbers", {"x": Feature("int64")})
    reader = reader_of(write_dataset(tmp_path, {"train": [[{"x": 1}, {"x": 2}]]}, written))
    object.__setattr__(reader.manifest, "schema", Schema("texts", {"x": Feature("bytes")}))
    facts = gathered(reader, np.arange(2))
    assert facts.misfits == {"x": 2}
    assert "x" not in facts.sizes


@pytest.mark.parametrize(("records", "each"), [(10, 3), (2 * MOST_VALUES, 1), (100, 5000)])
def test_values_are_bounded_and_from_all_over_the_records(records, each):
    values = Values()
    for number in range(records):
        values.add([number] * each)
    assert values.count == records * each
    assert values.complete == (values.count <= MOST_VALUES)
    assert min(values.count, MOST_VALUES / 4) < len(values.kept) + 1 <= MOST_VALUES + 3
    assert (values.kept.min(), values.kept.max()) == (0, records - 1)
    assert abs(np.median(values.kept) - records / 2) < max(1, records / 50)


def test_neither_a_period_nor_nan_biases_what_is_kept():
    values = Values()
    for _ in range(MOST_VALUES // 3):
        values.add([0.0, 1.0, np.nan, 1.0])
    assert not values.complete
    assert abs(np.nanmean(values.kept) - 2 / 3) < 0.02
    assert abs(np.isnan(values.kept).mean() - 1 / 4) < 0.02


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([0], [("0 B to 0 B", 1)]),
        ([1000, 1010], [("1 KB to 1.01 KB", 2)]),
        ([0, 800], [("0 B to 100 B", 1), *[(f"{at} B to {at + 100} B", 0) for at in range(100, 700, 100)]]),
    ],
)
def test_shards_of_about_one_size_are_one_range(sizes, told):
    shards = tuple(ShardEntry(f"train-{at}", 1, size, 0) for at, size in enumerate(sizes))
    assert shard_sizes(SplitEntry(shards, 0, "", "", 0))[:7] == told
