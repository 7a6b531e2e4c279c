"""describe --html: every number on the page is that of the dataset."""

import dataclasses
import io
import json
import re
from pathlib import Path

import pytest
from damage import flip_payload_bits
from odd_names import MARKUP, RECORDS, dataset_with_markup
from PIL import Image

from pipeline.commands import dataset_page as page_of_dataset
from pipeline.commands import dataset_splits as splits
from pipeline.commands import describe
from pipeline.commands.dataset_facts import gathered, sample
from pipeline.commands.dataset_page import dataset_page
from pipeline.commands.dataset_splits import Reason, SplitFacts, read_rejects
from pipeline.errors import OptionError
from pipeline.pages.figures import thumbnail
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.storage.local import LocalStorage
from pipeline.tokenizers import PACKED_TEXT, ByteTokenizer, TextInfo


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return dataset_with_markup(tmp_path_factory.mktemp("marked"))


def reader_of(directory):
    return IndexedRecords(read_manifest(directory), "train", LocalStorage())


def page_of(directory, *options):
    describe.main([str(directory), f"--html={directory}/page.html", *options])
    return Path(directory, "page.html").read_text()


def test_the_page_has_samples_labels_charts_and_the_commands_that_read_it(marked):
    page = page_of(marked)
    assert page.count("<img ") == RECORDS
    assert "Counted in all 12 records. 2 of 2 classes occur." in page
    assert "<span>90 pixels</span><span>101 pixels</span>" in page
    assert "<strong>12</strong><span>records</span><span>train 12</span>" in page
    assert "<strong>2</strong><span>classes</span><span>6 records each in train</span>" in page
    assert f"infeed verify {marked}" in page or f"infeed verify {marked}" in page
    assert f"trainer images --data-dir {marked} --workdir runs/images " in page
    assert "--train-split &#39;train[:90%]&#39; --eval-split &#39;train[90%:]&#39;" in page
    assert "train_dataset(records, global_batch=12" in page
    assert page_of(marked, "--samples=3").count("<img ") == 3


def test_rejects_are_counted_by_reason_without_their_numbers(marked, tmp_path):
    directory = tmp_path / "data"
    directory.mkdir()
    (directory / "_rejects").mkdir()
    errors = ["truncated at byte 12", "truncated at byte 99", "not an image"]
    lines = [
        json.dumps({"key": f"{MARKUP}{at}", "error": error}) for at, error in enumerate(errors)
    ]
    (directory / "_rejects/train.jsonl").write_text("\n".join([*lines, "{"]) + "\n")
    rejects = read_rejects(LocalStorage(), str(directory), "train")
    assert rejects == [
        (Reason("truncated at byte 12", f"{MARKUP}0", several=True), 2),
        (Reason("not an image", f"{MARKUP}2"), 1),
        (Reason("(a damaged line)", ""), 1),
    ]
    assert read_rejects(LocalStorage(), marked, "train") == []
    manifest = read_manifest(marked)
    facts = gathered(reader_of(marked), sample(RECORDS, 5))
    split = SplitFacts("train", facts, "some", rejects=rejects)
    titles = {
        section.title: section.blocks
        for section in dataset_page(manifest, [split], None, "").sections
    }
    (table,) = titles["Rejected inputs"]
    assert table.rows[0] == (2, "truncated at byte 12", f"{MARKUP}0")
    assert (
        table.note
        == "Reasons that differ only in their numbers are counted together; the text is that of the example."
    )
    split = SplitFacts("train", facts, "some", rejects=rejects[1:])
    titles = {
        section.title: section.blocks
        for section in dataset_page(manifest, [split], None, "").sections
    }
    assert not titles["Rejected inputs"][0].note


def test_missing_reject_reasons_are_reported_as_unknown(marked):
    manifest = read_manifest(marked)
    fixups = {"png_to_jpeg": 2, "alpha_on_white": 1, "turned_upright": 4}
    entries = {"train": dataclasses.replace(manifest.splits["train"], rejected=3, fixups=fixups)}
    page = dataset_page(
        dataclasses.replace(manifest, splits=entries), [SplitFacts("train")], None, ""
    ).html()
    assert (
        "train: 3 inputs were rejected; the reasons are unknown because _rejects/train.jsonl is missing."
        in page
    )
    assert "transparency made white 1, PNG to JPEG 2, turned upright 4" in page
    assert "<span>3 inputs rejected</span>" in page


def test_datasets_without_images_labels_or_records_have_a_page(write_dataset, tmp_path):
    table = Schema(
        "table",
        {
            "x": Feature("float32"),
            "name": Feature("bytes", content="text"),
            "raw": Feature("bytes"),
        },
    )
    values = [
        {"x": 0.5, "name": b"<i>one", "raw": b"\x00\x01"},
        {"x": 1.5, "name": b"two", "raw": b""},
    ]
    page = page_of(write_dataset(tmp_path / "table", {"train": [values], "test": [[]]}, table))
    assert "&lt;i&gt;one" in page
    assert "<i>" not in page
    assert '<td class="short">00 01 (2 bytes)</td>' in page
    assert re.findall("<th .*?>(.*?)</th>", samples_of(page)) == ["record", "text", "raw", "x"]


def samples_of(page):
    """The table of samples of train."""
    return page.partition("<h2>Samples of train</h2>")[2].partition("</table>")[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--samples=-1"], r"--samples=-1: must be at least 0\."),
        (
            ["--html=page.html", "--samples=401"],
            r"--samples=401: must be at least 0, and at most 400 on a page",
        ),
        (["--html="], r"the page's path is empty\. Give the name of a file, such as page\.html\."),
        (
            ["--html=/tmp/"],
            r"'/tmp/' is a directory\. Give the name of a file in it: /tmp/page\.html",
        ),
    ],
)
def test_bad_options_are_one_line(marked, options, message):
    with pytest.raises(OptionError, match=message):
        describe.main([marked, *options])


def test_a_damaged_image_is_counted_and_named(write_dataset, tmp_path):
    schema = Schema("pictures", {"image": Feature("bytes", content="image")})
    page = page_of(
        write_dataset(
            tmp_path / "data", {"train": [[{"image": png(80)}, {"image": b"no"}]]}, schema
        )
    )
    assert re.search(r"<dt>unreadable</dt><dd>1</dd>", page)


def test_a_damaged_record_is_counted_and_the_others_are_shown(write_dataset, tmp_path):
    schema = Schema("pictures", {"image": Feature("bytes", content="image")})
    data = write_dataset(tmp_path / "data", {"train": [[{"image": png(80)}] * 4]}, schema)
    flip_payload_bits(data, "train", 2)
    page = page_of(data)
    assert page.count("<img ") == 3
    assert "<dt>PNG RGB</dt><dd>3</dd>" in page
    assert (
        "train: 1 record is damaged and left out here. To find every damaged record, run: infeed verify "
        f"{data} --split train --decode" in page
    )


def test_a_table_has_a_column_for_each_feature_up_to_a_limit(write_dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(page_of_dataset, "MOST_COLUMNS", 2)
    schema = Schema(
        "table", {"a": Feature("int64"), "b": Feature("float32", (2,)), "c": Feature("int64")}
    )
    page = page_of(
        write_dataset(tmp_path / "data", {"train": [[{"a": 7, "b": [0.5, 2], "c": 9}]]}, schema)
    )
    assert re.findall("<td.*?>(.*?)</td>", samples_of(page)) == ["0", "7", "0.5, 2"]
    assert "1 more feature is not shown." in page


def test_a_picture_has_its_first_texts_and_values_below_it(write_dataset, tmp_path):
    texts = {f"t{at}": Feature("bytes", content="text") for at in range(5)}
    schema = Schema(
        "rich",
        texts | {"image": Feature("bytes", content="image"), "box": Feature("float32", (2,))},
    )
    record = {key: key.encode() for key in texts} | {"image": png(90), "box": [0.25, 3]}
    (figure,) = re.findall(
        r"<figure>.*?</figure>",
        page_of(write_dataset(tmp_path, {"train": [[record]]}, schema)),
        re.DOTALL,
    )
    assert re.findall("<span>(.*?)</span>", figure) == [
        "record 0",
        *("t0: t0", "t1: t1", "t2: t2", "and 2 more texts"),
        "box: 0.25, 3",
    ]


def test_pictures_of_a_record_are_together_and_named(write_dataset, tmp_path):
    schema = Schema(
        "robot",
        {
            "left": Feature("bytes", content="image"),
            "frames": Feature("bytes", (None,), content="image"),
        },
    )
    values = {"left": png(90), "frames": [png(91), png(92)]}
    page = page_of(write_dataset(tmp_path / "data", {"train": [[values]]}, schema))
    (figure,) = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
    assert re.findall(r'alt="(.*?)"', figure) == [
        "record 0, frames",
        "record 0, frames",
        "record 0, left",
    ]
    assert "Pictures of each record, from top to bottom: frames, left." in page
    assert "None of infeed&#39;s recipes trains on these records unchanged." in page


@pytest.mark.parametrize("fitting", [5, 12])
def test_a_page_shows_fewer_samples_if_all_would_make_it_too_large(
    write_dataset, tmp_path, monkeypatch, fitting
):
    schema = Schema("pictures", {"image": Feature("bytes", content="image")})
    data = write_dataset(
        tmp_path / "data", {"train": [[{"image": png(80)} for _ in range(20)]]}, schema
    )
    assert page_of(data).count("<img ") == 20
    monkeypatch.setattr(splits, "MOST_SAMPLE_BYTES", fitting * len(thumbnail(png(80), "").source))
    page = page_of(data)
    assert page.count("<img ") == fitting
    assert f"{fitting} of 20 samples are shown" in page


def test_a_dataset_in_a_bucket_has_its_page_there(marked, bucket, gcs_server):
    for file in Path(marked).rglob("*"):
        if file.is_file():
            gcs_server.write(
                bucket.removeprefix("gs://"), f"data/{file.relative_to(marked)}", file.read_bytes()
            )
    describe.main([f"{bucket}/data", f"--html={bucket}/data/page.html"])
    page = gcs_server.read(bucket.removeprefix("gs://"), "data/page.html").decode()
    assert f"open_dataset(&#39;{bucket}/data&#39;" in page
    assert page.count("<img ") == RECORDS


def test_packed_text_is_shown_as_text_with_the_lengths_of_its_segments(write_dataset, tmp_path):
    info, row = TextInfo(ByteTokenizer(), 8, "documents"), Feature("int64", (8,))
    schema = Schema(
        PACKED_TEXT,
        {"tokens": row, "segment_ids": row, "positions": row, "num_bytes": Feature("int64")},
    )
    tokens = [2, *(3 + byte for byte in b"<i>"), 2, 3 + ord("x"), 0, 0]
    values = {
        "tokens": tokens,
        "segment_ids": [1] * 4 + [2] * 2 + [0] * 2,
        "positions": [0] * 8,
        "num_bytes": 4,
    }
    directory = write_dataset(tmp_path / "data", {"train": [[values] * 2]}, schema)
    for name, content in info.files().items():
        Path(directory, name).write_bytes(content)
    page = page_of(directory)
    assert "&lt;i&gt; ┊ x" in page
    assert "4 values, median 3 tokens." in page
    assert "Tokenizer bytes, rows of 8 tokens, packing documents." in page
    assert "trainer byte_lm" in page
    assert "train: tokens" not in page


def png(side):
    sink = io.BytesIO()
    Image.new("RGB", (side, side)).save(sink, "PNG")
    return sink.getvalue()
