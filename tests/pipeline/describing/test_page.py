"""describe --html: every number on the page is that of the dataset."""

import io
import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from odd_names import MARKUP, RECORDS, dataset_with_markup
from PIL import Image

from pipeline import describe
from pipeline.describing.facts import MOST_VALUES, Values, gathered, sample
from pipeline.describing.page import SplitFacts, dataset_page, label_rows
from pipeline.describing.rejects import read_rejects
from pipeline.errors import OptionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.local import LocalStorage


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return dataset_with_markup(tmp_path_factory.mktemp("marked"))


def reader_of(directory):
    return IndexedRecords(read_manifest(directory), "train", LocalStorage())


def page_of(directory, *options):
    describe.main([str(directory), f"--html={directory}/page.html", *options])
    return Path(directory, "page.html").read_text()


def test_facts_are_those_of_the_records(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS))
    assert (facts.records, facts.labels) == (RECORDS, Counter({0: 6, 1: 6}))
    assert facts.widths["image"].kept.tolist() == [90 + number for number in range(RECORDS)]
    assert set(facts.heights["image"].kept.tolist()) == {40}
    assert facts.formats == {"JPEG RGB": RECORDS}
    assert facts.lengths[MARKUP].kept.tolist() == [len(MARKUP)] * RECORDS
    assert len(facts.numbers["height"].kept) == RECORDS
    assert "label" not in facts.numbers


def test_only_labels_are_counted_if_only_they_are_asked_for(marked):
    facts = gathered(reader_of(marked), np.arange(RECORDS), only_labels=True)
    assert facts.labels == {0: 6, 1: 6}
    assert not facts.numbers
    assert not facts.formats


@pytest.mark.parametrize(("records", "each"), [(10, 3), (2 * MOST_VALUES, 1), (1000, 2000)])
def test_values_are_bounded_and_from_all_over_the_records(records, each):
    values = Values(records)
    for number in range(records):
        values.add([number] * each)
    assert 0 < len(values.kept) <= MOST_VALUES + records
    assert values.kept.max() >= 0.99 * (records - 1)
    assert len(values.kept) == records * each or len(values.kept) > MOST_VALUES / 4


def test_the_page_has_samples_labels_charts_and_the_commands_that_read_it(marked):
    page = page_of(marked)
    assert page.count("<img ") == RECORDS
    assert "Of all 12 records. 2 of 2 classes occur." in page
    assert "12 values from 90 to 101" in page
    assert f"infeed verify {marked}" in page or f"python -m pipeline.verify {marked}" in page
    assert f"trainer images --data-dir {marked} --workdir runs/images" in page
    assert "train_dataset(records, global_batch=32" in page
    assert page_of(marked, "--samples=3").count("<img ") == 3


def test_rejects_are_counted_by_reason_without_their_numbers(marked, tmp_path):
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "_rejects").mkdir()
    errors = ["truncated at byte 12", "truncated at byte 99", "not an image"]
    lines = [json.dumps({"key": f"{MARKUP}{at}", "error": error}) for at, error in enumerate(errors)]
    (directory / "_rejects/train.jsonl").write_text("\n".join([*lines, "{"]) + "\n")
    rejects = read_rejects(LocalStorage(), str(directory), "train")
    assert rejects.counts == [("truncated at byte N", 2), ("not an image", 1), ("(a damaged line)", 1)]
    assert rejects.example["truncated at byte N"] == f"{MARKUP}0"
    assert read_rejects(LocalStorage(), marked, "train") is None
    manifest = read_manifest(marked)
    facts = gathered(reader_of(marked), sample(RECORDS, 5))
    split = SplitFacts("train", facts, "some", [], [], rejects, {})
    titles = {section.title: section.blocks for section in dataset_page(manifest, [split], None, "").sections}
    (table,) = titles["Rejected inputs"]
    assert table.rows[0] == (2, "truncated at byte N", f"{MARKUP}0")


def test_of_many_labels_the_most_and_the_least_frequent_are_shown():
    rows, told = label_rows({label: label + 1 for label in range(100)}, 6, str)
    assert rows == [("99", 100), ("98", 99), ("97", 98), ("2", 3), ("1", 2), ("0", 1)]
    assert told == "the 3 most and the 3 least frequent"


def test_datasets_without_images_labels_or_records_have_a_page(write_dataset, tmp_path):
    table = Schema(
        "table", {"x": Feature("float32"), "name": Feature("bytes", content="text"), "raw": Feature("bytes")}
    )
    values = [{"x": 0.5, "name": b"<i>one", "raw": b"\x00\x01"}, {"x": 1.5, "name": b"two", "raw": b""}]
    page = page_of(write_dataset(tmp_path / "table", {"train": [values], "test": [[]]}, table))
    assert "&lt;i&gt;one" in page
    assert "<i>" not in page
    assert "raw: 00 01 (2 bytes)" in page
    assert "x: 0.5" in page


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples=-1"], r"--samples=-1: must be at least 0\."),
        (["--html=page.html", "--samples=401"], r"--samples=401: must be at least 0, and at most 400 on a page"),
        (["--html=/tmp/"], r"'/tmp/' is a directory\. Give the name of a file in it: /tmp/page\.html"),
    ],
)
def test_bad_options_are_one_line(marked, options, message):
    with pytest.raises(OptionError, match=message):
        describe.main([marked, *options])


def test_a_damaged_image_is_counted_and_named(write_dataset, tmp_path):
    sink = io.BytesIO()
    Image.new("RGB", (80, 80)).save(sink, "PNG")
    schema = Schema("pictures", {"image": Feature("bytes", content="image")})
    page = page_of(
        write_dataset(tmp_path / "data", {"train": [[{"image": sink.getvalue()}, {"image": b"no"}]]}, schema)
    )
    assert re.search(r"<dt>unreadable</dt><dd>1</dd>", page)
