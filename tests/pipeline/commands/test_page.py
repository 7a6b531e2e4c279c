"""describe --html: every number on the page is that of the dataset, and what is left out is stated."""

import dataclasses
import json
import re
from pathlib import Path

import pytest
from damage import flip_payload_bits
from odd_names import MARKUP, RECORDS, dataset_with_markup
from pictures import encoded
from PIL import Image
from read_page import read_page

from pipeline.commands import dataset_page as page_of_dataset
from pipeline.commands import describe
from pipeline.commands import split_facts as splits
from pipeline.errors import OptionError
from pipeline.pages.figures import thumbnail
from pipeline.shards.manifest import INDEX_WRITER, read_manifest, update_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.local import LocalStorage
from pipeline.tokenizers import PACKED_TEXT, ByteTokenizer, TextInfo

IMAGE = Feature("bytes", content="image")
SUMMARY = {"started": 86_400.5, "seconds": 1234.5, "warnings": ["slow"], "split": "train"}


@pytest.fixture(scope="module")
def marked(tmp_path_factory):
    return dataset_with_markup(tmp_path_factory.mktemp("marked"))


@pytest.fixture
def dataset(write_dataset, tmp_path):
    """dataset(features, *records, **splits): a dataset of train with these records; its path."""

    def write(features, *records, **splits):
        shards = {"train": [records]} | {name: [shard] for name, shard in splits.items()}
        return write_dataset(tmp_path / "data", shards, Schema("it", features))

    return write


def change(directory, entry=None, **fields):
    """Changes fields of the manifest, and of its split train."""
    manifest = read_manifest(directory)
    splits = {"train": dataclasses.replace(manifest.splits["train"], **entry or {})}
    changed = dataclasses.replace(manifest, **{"splits": manifest.splits | splits, **fields})
    update_manifest(LocalStorage(), directory, lambda _: changed)


def page_of(directory, *options):
    describe.main([str(directory), f"--html={directory}/page.html", *options])
    return Path(directory, "page.html").read_text()


def png(side):
    return encoded(Image.new("RGB", (side, side)), "PNG")


def test_the_page_has_samples_labels_charts_and_the_commands_that_read_it(marked):
    html = page_of(marked)
    page = read_page(html)
    assert html.count("<img ") == RECORDS
    assert page[""][:3] == ["12", "records", "train 12"]
    assert page[""][-3:] == ["2", "classes", "6 records each in train"]
    assert (
        page["Records of each class in train"][-1]
        == "Counted in all 12 records. 2 of 2 classes occur."
    )
    assert page["Distributions"][1:6] == [
        *("Counted in all 12 records.", "train: widths of image"),
        *("90 pixels", "101 pixels", "12 values, median 95.5 pixels."),
    ]
    shell, program = page["How to read it"][1], page["How to read it"][3]
    assert shell.splitlines()[0].endswith(f" verify {marked}")
    assert f"trainer images --data-dir {marked} --workdir runs/images " in shell
    assert "--train-split 'train[:90%]' --eval-split 'train[90%:]'" in shell
    assert (
        "size=(65, 65))\nfor batch in train_dataset(records, global_batch=12, ops=[crop])"
        in program
    )
    assert page_of(marked, "--samples=3").count("<img ") == 3


def test_rejects_are_counted_by_reason_without_their_numbers(marked, monkeypatch):
    rejects = Path(marked, "_rejects/train.jsonl")
    rejects.parent.mkdir()
    errors = ["truncated at byte 12", "truncated at byte 99", "not an image"]
    lines = [json.dumps({"key": f"{MARKUP}{at}", "error": each}) for at, each in enumerate(errors)]
    rejects.write_text("\n".join([*lines, "{"]) + "\n")
    rows = [
        ("inputs", "reason", "for example"),
        ("2", "truncated at byte 12", f"{MARKUP}0"),
        ("1", "not an image", f"{MARKUP}2"),
        ("1", "(a damaged line)", ""),
    ]
    alike = "Reasons that differ only in their numbers are counted together; the text is that of the example."
    assert read_page(page_of(marked))["Rejected inputs"] == ["train", *rows, alike]
    monkeypatch.setattr(page_of_dataset, "MOST_REASONS", 2)
    text = f"{alike} 1 more reason is not shown."
    assert read_page(page_of(marked))["Rejected inputs"] == ["train", *rows[:3], text]
    rejects.write_text("\n".join(lines[1:]))
    assert read_page(page_of(marked))["Rejected inputs"][1:] == [
        *(rows[0], ("1", errors[1], f"{MARKUP}1"), rows[2])
    ]
    rejects.unlink()
    rejects.parent.rmdir()


def test_missing_reject_reasons_are_reported_as_unknown(dataset):
    data = dataset({"x": Feature("int64")}, {"x": 1})
    fixups = {"png_to_jpeg": 2, "alpha_on_white": 1, "turned_upright": 4}
    change(data, {"rejected": 3, "fixups": fixups})
    page = read_page(page_of(data))
    assert page["Rejected inputs"] == [
        "train: 3 inputs were rejected; the reasons are unknown because _rejects/train.jsonl is missing."
    ]
    assert page["Splits and shards"][1][-1] == (
        "transparency made white 1, PNG to JPEG 2, turned upright 4"
    )
    assert page[""][5] == "3 inputs rejected"


@pytest.mark.parametrize(
    ("summary", "converted"),
    [
        (json.dumps(SUMMARY), "1970-01-02 00:00:00 UTC, in 20 min 34 s"),
        *(
            (text, "{}/_summary/train.json is damaged")
            for text in ("", "[]", "{}", "null", '{"started": "x"')
        ),
        (json.dumps(SUMMARY | {"started": 1e300}), "{}/_summary/train.json is damaged"),
        (json.dumps({**SUMMARY, "warnings": None}), "{}/_summary/train.json is damaged"),
    ],
)
def test_the_page_tells_how_a_split_was_converted_even_if_its_summary_is_damaged(
    dataset, summary, converted
):
    data = dataset({"x": Feature("int64")}, {"x": 1})
    change(data, {"sources": {"inputs": 1, "bytes": 2_000_000}, "seed": 5}, writer="us 1.0")
    Path(data, "_summary").mkdir()
    Path(data, "_summary/train.json").write_text(summary)
    entry = read_manifest(data).splits["train"]
    assert read_page(page_of(data))["How it was made"][1:] == [
        ("written by", "us 1.0"),
        ("schema", "it"),
        ("train: raw data", "1 input, 2 MB"),
        ("train: converted", converted.format(data)),
        ("train: fingerprint", entry.fingerprint),
        ("train: plan, seed", f"{entry.plan_digest}, 5"),
        *([("train: warning", "slow")] if "damaged" not in converted else []),
    ]


def test_an_index_of_foreign_files_is_described_without_a_conversion_summary(dataset):
    data = dataset({"x": Feature("int64")}, {"x": 1})
    change(
        data,
        {"sources": {"inputs": 2, "bytes": 0}},
        writer=f"{INDEX_WRITER} 1.0",
        labels=Labels("x", 1, ("a", "b")),
    )
    page = read_page(page_of(data))["How it was made"]
    assert [*page[1:3], page[4]] == [
        ("written by", f"{INDEX_WRITER} 1.0: an index of existing TFRecord files"),
        ("schema", "it"),
        ("train: raw data", "2 inputs"),
    ]
    assert page[3] == ("labels", "2 classes in x, numbered from 1")
    change(data, writer="")
    assert read_page(page_of(data))["How it was made"][1] == ("written by", "an unknown program")


def test_datasets_without_images_labels_or_records_have_a_page(dataset):
    features = {
        "x": Feature("float32"),
        "name": Feature("bytes", content="text"),
        "raw": Feature("bytes"),
    }
    one, two = (
        {"x": 0.5, "name": b"<i>one", "raw": b"\x00\x01"},
        {"x": 1.5, "name": b"two", "raw": b""},
    )
    html = page_of(dataset(features, one, two, test=[]))
    assert "<i>" not in html
    assert read_page(html)["Samples of train"] == [
        ("record", "text", "raw", "x"),
        ("0", "<i>one", "00 01 (2 bytes)", "0.5"),
        ("1", "two", " (0 bytes)", "1.5"),
    ]


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


def test_damaged_images_and_records_are_counted_and_the_others_are_shown(dataset):
    data = dataset({"image": IMAGE}, *[{"image": png(80)}] * 4, {"image": b"no"})
    flip_payload_bits(data, "train", 2)
    html = page_of(data)
    page = read_page(html)
    assert html.count("<img ") == 3
    assert page["Distributions"][-5:] == [
        "train: images by format",
        "PNG RGB",
        "3",
        "unreadable",
        "1",
    ]
    assert page[""][-1] == (
        "train: 1 record is damaged and left out here. To find every damaged record, run: "
        f"infeed verify {data} --split train --decode"
    )


def test_a_table_has_a_column_for_each_feature_up_to_a_limit(dataset, monkeypatch):
    monkeypatch.setattr(page_of_dataset, "MOST_COLUMNS", 2)
    features = {"a": Feature("int64"), "b": Feature("float32", (2,)), "c": Feature("int64")}
    page = read_page(page_of(dataset(features, {"a": 7, "b": [0.5, 2], "c": 9})))
    assert page["Samples of train"] == [
        *(("record", "a", "b"), ("0", "7", "0.5, 2"), "1 more feature is not shown.")
    ]


def test_a_picture_has_its_first_texts_and_values_below_it(dataset):
    texts = {f"t{at}": Feature("bytes", content="text") for at in range(5)}
    record = {key: key.encode() for key in texts} | {"image": png(90), "box": [0.25, 3]}
    page = read_page(
        page_of(dataset(texts | {"image": IMAGE, "box": Feature("float32", (2,))}, record))
    )
    assert page["Samples of train"] == [
        "record 0",
        *("t0: t0", "t1: t1", "t2: t2", "and 2 more texts"),
        "box: 0.25, 3",
    ]


def test_pictures_of_a_record_are_together_and_named(dataset):
    frames = Feature("bytes", (None,), content="image")
    values = {"left": png(90), "frames": [png(91), png(92)]}
    html = page_of(dataset({"left": IMAGE, "frames": frames}, values))
    (figure,) = re.findall(r"<figure>.*?</figure>", html, re.DOTALL)
    assert re.findall(r'alt="(.*?)"', figure) == [
        *("record 0, frames", "record 0, frames", "record 0, left")
    ]
    page = read_page(html)
    assert (
        page["Samples of train"][-1] == "Pictures of each record, from top to bottom: frames, left."
    )
    assert page["How to read it"][2].startswith("None of infeed's recipes trains on these records")


@pytest.mark.parametrize("fitting", [5, 12])
def test_a_page_shows_fewer_samples_if_all_would_make_it_too_large(dataset, monkeypatch, fitting):
    data = dataset({"image": IMAGE}, *[{"image": png(80)}] * 20)
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
    values = {
        "tokens": [2, *(3 + byte for byte in b"<i>"), 2, 3 + ord("x"), 0, 0],
        "segment_ids": [1] * 4 + [2] * 2 + [0] * 2,
        "positions": [0] * 8,
        "num_bytes": 4,
    }
    directory = write_dataset(tmp_path / "data", {"train": [[values] * 2]}, schema)
    for name, content in info.files().items():
        Path(directory, name).write_bytes(content)
    page = read_page(page_of(directory))
    assert "<i> ┊ x" in page["Samples of train"][1]
    assert page["Distributions"] == [
        *(
            "train",
            "Counted in all 2 records.",
            "train: lengths of segments",
            "2 tokens",
            "4 tokens",
        ),
        *("4 values, median 3 tokens.", "train: same value in every record"),
        *(("feature", "value"), ("num_bytes", "4")),
    ]
    assert page["Text"][0] == "Tokenizer bytes, rows of 8 tokens, packing documents."
    assert "trainer byte_lm" in page["How to read it"][1]


def test_only_values_that_are_exactly_equal_are_listed_as_the_same_in_every_record(dataset):
    records = [
        {"large": 1_234_567, "time": 1_700_000_000_000_000_000 + 100 * at, "raw": b"x" * 12_288}
        for at in range(2)
    ]
    features = {"large": Feature("int64"), "time": Feature("int64"), "raw": Feature("bytes")}
    page = read_page(page_of(dataset(features, *records)))["Distributions"]
    assert page[page.index("train: same value in every record") + 2 :] == [
        *(("large", "1,234,567"), ("sizes of raw", "12,288"))
    ]
    assert "train: time" in page


def test_splits_share_the_charts_of_a_page(dataset, monkeypatch):
    monkeypatch.setattr(page_of_dataset, "MOST_CHARTS", 4)
    records = [dict.fromkeys("abc", number) for number in range(3)]
    data = dataset({name: Feature("int64") for name in "abc"}, *records, test=records)
    page = read_page(page_of(data))["Distributions"]
    assert [text for text in page if ": " in text or "more" in text] == [
        *("test: a", "test: b", "1 more feature is not shown."),
        *("train: a", "train: b", "1 more feature is not shown."),
    ]


def test_the_page_states_the_size_of_one_shard(dataset):
    page = read_page(page_of(dataset({"raw": Feature("bytes")}, *[{"raw": b"x" * 9_000}] * 4)))
    assert re.fullmatch(r"train: 1 shard of 36\.\d KB\.", page["Splits and shards"][-1])


def test_non_finite_values_are_counted_and_an_empty_chart_becomes_a_sentence(dataset):
    nan, infinity = float("nan"), float("inf")
    records = [{"x": 1.0, "none": nan}, {"x": infinity, "none": nan}]
    features = {"x": Feature("float32"), "none": Feature("float32")}
    page = read_page(page_of(dataset(features, *records)))["Distributions"]
    assert page[2:] == [
        "train: none: none of 2 values is finite.",
        *("train: x", "1", "1", "1 value, median 1. 1 value is not finite and not shown."),
    ]


def test_a_feature_with_another_dtype_than_the_schema_is_a_warning(dataset):
    data = dataset({"x": Feature("float32")}, {"x": 0.5})
    change(data, schema=Schema("numbers", {"x": Feature("int64")}))
    text = "train: 1 record has &#39;x&#39; in another dtype than the schema."
    assert f'<p class="warning">{text}</p>' in page_of(data)
