"""The numbers on the page of a dataset: exact constants, what is not finite, and what does not fit the schema."""

import re

import numpy as np

from pipeline.commands import dataset_page as page_of_dataset
from pipeline.commands.dataset_facts import gathered
from pipeline.commands.dataset_page import dataset_page
from pipeline.commands.dataset_splits import SplitFacts
from pipeline.pages.page import Histogram, Note
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.local import LocalStorage


def reader_of(directory, split="train"):
    return IndexedRecords(read_manifest(directory), split, LocalStorage())


def distributions(write_dataset, directory, records, **features):
    """Title -> block of the page's section."""
    data = write_dataset(directory, {"train": [records]}, Schema("numbers", features))
    split = SplitFacts("train", gathered(reader_of(data), np.arange(len(records))), "all")
    sections = dataset_page(read_manifest(data), [split], None, "").sections
    return {
        block.title: block
        for block in next(each for each in sections if each.title == "Distributions").blocks
    }


def test_only_values_that_are_exactly_equal_are_listed_as_the_same_in_every_record(
    write_dataset, tmp_path
):
    records = [
        {"large": 1_234_567, "time": 1_700_000_000_000_000_000 + 100 * at, "raw": b"x" * 12_288}
        for at in range(2)
    ]
    features = {"large": Feature("int64"), "time": Feature("int64"), "raw": Feature("bytes")}
    blocks = distributions(write_dataset, tmp_path, records, **features)
    assert dict(blocks["train: same value in every record"].rows) == {
        "large": 1_234_567,
        "sizes of raw": 12_288,
    }
    assert "train: time" in blocks


def test_splits_share_the_charts_of_a_page(write_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(page_of_dataset, "MOST_CHARTS", 4)
    features = {name: Feature("int64") for name in "abc"}
    records = [dict.fromkeys("abc", number) for number in range(3)]
    data = write_dataset(
        tmp_path, {"train": [records], "test": [records]}, Schema("numbers", features)
    )
    found = [
        SplitFacts(split, gathered(reader_of(data, split), np.arange(3)), "all")
        for split in ("test", "train")
    ]
    (section,) = [
        each
        for each in dataset_page(read_manifest(data), found, None, "").sections
        if each.title == "Distributions"
    ]
    assert [block.title for block in section.blocks if isinstance(block, Histogram)] == [
        f"{split}: {name}" for split in ("test", "train") for name in "ab"
    ]
    assert [block.text for block in section.blocks if isinstance(block, Note)].count(
        "1 more feature is not shown."
    ) == 2


def test_the_page_states_the_size_of_one_shard(write_dataset, tmp_path):
    schema = Schema("raw", {"raw": Feature("bytes")})
    data = write_dataset(tmp_path, {"train": [[{"raw": b"x" * 9_000}]] * 4}, schema)
    html = dataset_page(read_manifest(data), [SplitFacts("train")], None, "").html()
    assert re.search(r"train: 4 shards of about 9\.0\d KB\.", html)


def test_non_finite_values_are_counted_and_an_empty_chart_becomes_a_sentence(
    write_dataset, tmp_path
):
    records = [{"x": 1.0, "none": float("nan")}, {"x": float("inf"), "none": float("nan")}]
    features = {"x": Feature("float32"), "none": Feature("float32")}
    blocks = distributions(write_dataset, tmp_path, records, **features)
    assert blocks["train: x"].note.endswith("1 value is not finite and not shown.")
    texts = [block.text for block in blocks.values() if isinstance(block, Note)]
    assert "train: none: none of 2 values is finite." in texts


def test_a_feature_with_another_dtype_than_the_schema_is_a_warning(write_dataset, tmp_path):
    data = write_dataset(
        tmp_path, {"train": [[{"x": 0.5}]]}, Schema("numbers", {"x": Feature("float32")})
    )
    reader = reader_of(data)
    object.__setattr__(reader.manifest, "schema", Schema("numbers", {"x": Feature("int64")}))
    split = SplitFacts("train", gathered(reader, np.arange(1)), "all")
    html = dataset_page(reader.manifest, [split], None, "").html()
    assert (
        '<p class="warning">train: 1 record has &#39;x&#39; in another dtype than the schema.</p>'
        in html
    )
