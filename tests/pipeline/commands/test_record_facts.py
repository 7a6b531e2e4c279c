"""Facts about records: exact while they fit into a bounded memory, a random part of the values beyond."""

from collections import Counter

import numpy as np
import pytest
from odd_names import MARKUP, RECORDS, dataset_with_markup

from pipeline.commands.dataset_facts import shard_sizes
from pipeline.commands.record_facts import gathered
from pipeline.shards.manifest import ShardEntry, SplitEntry, read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.local import LocalStorage


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return dataset_with_markup(tmp_path_factory.mktemp("marked"))


def reader_of(directory):
    return IndexedRecords(read_manifest(directory), "train", LocalStorage())


def kept(facts):
    """What was measured -> its values."""
    return {measure.title: values.kept.tolist() for measure, values in facts.values.items()}


def test_gathered_facts_describe_the_records(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS))
    assert (facts.records, facts.labels) == (RECORDS, Counter({0: 6, 1: 6}))
    values = kept(facts)
    assert values["widths of image"] == [90 + number for number in range(RECORDS)]
    assert set(values["heights of image"]) == {40}
    assert facts.formats == {"JPEG RGB": RECORDS}
    assert values[f"sizes of {MARKUP}"] == [len(MARKUP)] * RECORDS
    assert len(values["height"]) == RECORDS
    assert not {"label", "sizes of file_name"} & values.keys()
    assert not facts.misfits


def test_only_labels_are_counted_if_only_they_are_asked_for(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS), only_labels=True)
    assert facts.labels == {0: 6, 1: 6}
    assert not facts.values
    assert not facts.formats


def test_lengths_are_numbers_of_values_and_sizes_are_bytes(write_dataset, tmp_path):
    schema = Schema(
        "lists",
        {"box": Feature("float32", (None,)), "tags": Feature("bytes", (None,), content="text")},
    )
    values = [{"box": [1, 2, 3], "tags": [b"a", b"bcd"]}, {"box": [], "tags": []}]
    facts = gathered(reader_of(write_dataset(tmp_path, {"train": [values]}, schema)), np.arange(2))
    assert kept(facts) == {
        "lengths of box": [3, 0],
        "lengths of tags": [2, 0],
        "sizes of tags": [1, 3],
        "box": [1, 2, 3],
    }


def test_segments_of_packed_text_have_lengths_without_the_padding(write_dataset, tmp_path):
    schema = Schema(
        "packed_text", {"segment_ids": Feature("int64", (6,)), "num_bytes": Feature("int64")}
    )
    rows = [
        {"segment_ids": [1, 1, 1, 2, 0, 0], "num_bytes": 4},
        {"segment_ids": [1] * 6, "num_bytes": 6},
    ]
    facts = gathered(reader_of(write_dataset(tmp_path, {"train": [rows]}, schema)), np.arange(2))
    assert kept(facts) == {"num_bytes": [4, 6], "lengths of segments": [3, 1, 6]}


@pytest.mark.parametrize(("dtype", "value"), [("int64", 1), ("float32", 0.5), ("bytes", b"a")])
def test_a_record_that_does_not_fit_the_schema_is_counted(write_dataset, tmp_path, dtype, value):
    directory = write_dataset(
        tmp_path, {"train": [[{"x": value}] * 2]}, Schema("written", {"x": Feature(dtype)})
    )
    for told in ("int64", "float32", "bytes"):
        reader = reader_of(directory)
        object.__setattr__(reader.manifest, "schema", Schema("told", {"x": Feature(told)}))
        facts = gathered(reader, np.arange(2))
        assert facts.misfits == ({} if told == dtype else {"x": 2})
        assert bool(facts.values) == (told == dtype)


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([0], [("0 B to 0 B", 1)]),
        ([1000, 1010], [("1 KB to 1.01 KB", 2)]),
        (
            [0, 800],
            [("0 B to 100 B", 1), *[(f"{at} B to {at + 100} B", 0) for at in range(100, 700, 100)]],
        ),
    ],
)
def test_shards_of_similar_sizes_form_one_range(sizes, told):
    shards = tuple(ShardEntry(f"train-{at}", 1, size, 0) for at, size in enumerate(sizes))
    assert shard_sizes(SplitEntry(shards, 0, "", "", 0))[:7] == told
