"""The page of what steps saw: each picture is that of its record, and what cannot be shown says why."""

import base64
import io
import shutil

import numpy as np
import pytest
from damage import flip_payload_bits
from PIL import Image

from pipeline.datasets import train_dataset
from pipeline.pages.page import Note, Pictures, Table
from pipeline.sources.open_dataset import open_dataset
from trainer.history.seen_records import seen_steps
from trainer.history.segments import Start, append, read_history
from trainer.seen import seen_page

BATCH, SHOWN = 16, 6
LOSSES = np.random.default_rng(0).permutation(BATCH).astype(np.float32)


@pytest.fixture
def data(digits, tmp_path):
    """A copy of the digits, which a test may damage."""
    return str(shutil.copytree(digits[1], tmp_path / "data"))


@pytest.fixture
def seen(data, tmp_path):
    """Makes what the first steps of a training on the data saw: at most 6 records of each."""
    source = train_dataset(data, global_batch=BATCH, keys=["image/class/label"], seed=3)
    versions = {"infeed": "0"}
    append(
        str(tmp_path),
        Start(
            0,
            "2026-11-23T12:00:00+00:00",
            source.state(source.start),
            source.info.provenance,
            {},
            None,
            versions,
            "1 x cpu",
        ),
    )

    def make(steps=1, most=SHOWN, **options):
        return list(seen_steps(read_history(str(tmp_path)), str(tmp_path), range(1, steps + 1), most=most, **options))

    return make


def page_of(steps, with_losses=False):
    return seen_page("run", steps, {seen.step: "Told." for seen in steps}, with_losses, "command")


def blocks_of(page, kind):
    return [block for section in page.sections for block in section.blocks if isinstance(block, kind)]


def pixels_of(file):
    with Image.open(io.BytesIO(file)) as image:
        return np.asarray(image.convert("RGB"))


def rows_of(table):
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.mark.parametrize("losses", [None, {1: LOSSES}], ids=["in the order of the batch", "by loss"])
def test_each_picture_is_that_of_its_record(data, seen, losses):
    (step,) = steps = seen(losses=losses)
    page = page_of(steps, losses is not None)
    (grid,), (table,) = blocks_of(page, Pictures), blocks_of(page, Table)
    examples = open_dataset(data, "train").examples(["image/encoded", "image/filename"])
    assert len(grid.items) == len(rows_of(table)) == SHOWN
    for record, (picture, lines), row in zip(step.records, grid.items, rows_of(table), strict=True):
        example = examples[record.index]
        stored = pixels_of(example["image/encoded"])
        np.testing.assert_array_equal(pixels_of(base64.b64decode(picture.source.partition(",")[2])), stored)
        assert picture.alt.startswith(f"record {record.place.record:,}, label {record.place.label}")
        assert f"row {record.row}" in lines
        assert row["key"].endswith(f"/{example['image/filename'].decode()}")
        assert (row["row"], row["index"]) == (record.row, record.index)
        if losses:
            assert (row["loss"], lines[0]) == (LOSSES[record.row], f"loss {LOSSES[record.row]:.4g}")
    assert page.html().count("<img ") == SHOWN


def test_a_damaged_record_has_no_picture_but_says_why(data, seen):
    damaged = seen()[0].records[2]
    flip_payload_bits(data, "train", damaged.place.record)
    page = page_of(seen())
    (grid,), (table,) = blocks_of(page, Pictures), blocks_of(page, Table)
    assert len(grid.items) == SHOWN - 1
    contents = [row["content"] for row in rows_of(table)]
    assert "crc" in contents.pop(2)
    assert set(contents) == {""}


def test_the_page_counts_its_steps_and_the_records_that_it_shows(seen):
    one, two = page_of(seen()), page_of(seen(2, most=None))
    assert one.lead == "The records of 1 training step. They are in the order of the batch."
    assert blocks_of(one, Note) == [Note("Told. 16 records, of which 6 are shown.")]
    assert two.lead == "The records of 2 training steps. They are in the order of the batch."
    assert blocks_of(two, Note) == [Note("Told. 16 records.")] * 2


def test_the_page_shows_only_record_numbers_if_the_data_are_gone(data, seen, caplog):
    shutil.rmtree(data)
    page = page_of(seen())
    assert not blocks_of(page, Pictures)
    (table,) = blocks_of(page, Table)
    assert [*table.columns] == ["row", "index", "epoch", "split"]
    assert "cannot locate the records" in caplog.text
