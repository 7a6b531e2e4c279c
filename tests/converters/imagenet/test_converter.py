"""ImageNet's own knowledge: layout, names, labels, schema."""

import dataclasses
import re

import pytest

from beam_jobs.converter import Source
from beam_jobs.rows.references import References
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import (
    RawImagenet,
    check_full_set,
    find_raw,
    ilsvrc2012_synsets,
    read_synsets,
)
from pipeline.errors import ConversionError, LabelError, OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat

pytestmark = pytest.mark.usefixtures("without_beam")

STORAGE = LocalStorage()


def scanned(raw, splits=("train", "validation"), synsets=None):
    synsets = tuple(synsets or raw.synsets)
    found = find_raw(str(raw.directory), splits, synsets, None)
    converter = ImagenetConverter(synsets, found.validation_labels)
    return converter, [
        row for source in found.sources for refs in converter.scan(STORAGE, source) for row in refs
    ]


def test_the_schema_is_tensorflow_tpus():
    schema = ImagenetConverter(("n1",)).schema
    assert {key: feature.dtype for key, feature in schema.features.items()} == {
        "image/encoded": "bytes", "image/height": "int64", "image/width": "int64", "image/channels": "int64",
        "image/colorspace": "bytes", "image/format": "bytes", "image/filename": "bytes",
        "image/class/label": "int64", "image/class/synset": "bytes", "image/class/text": "bytes",
    }  # fmt: skip


def test_the_thousand_classes_have_the_known_numbers():
    classes = ilsvrc2012_synsets()
    synsets = tuple(classes)
    assert len(synsets) == 1000
    assert classes["n01440764"] == "tench, Tinca tinca"
    assert list(synsets) == sorted(synsets)
    assert (synsets[0], synsets[65], synsets[-1]) == ("n01440764", "n01751748", "n15075141")


def test_every_image_is_referred_to_with_its_place_key_and_label(raw_imagenet):
    _, rows = scanned(raw_imagenet)
    data = {
        name: (raw_imagenet.directory / name).read_bytes()
        for name in ("ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
    }
    train = [row for row in rows if row.key.startswith("train/")]
    assert len(train) == 18
    for row in train:
        _, synset, name = row.key.split("/")
        whole = data["ILSVRC2012_img_train.tar"]
        assert whole[row.offset : row.offset + row.size] == raw_imagenet.train[synset][name]
        assert row.columns == {
            "label": 1 + raw_imagenet.synsets.index(synset),
            "synset": synset.encode(),
        }
        assert not row.error
    assert {row.key for row in rows} - {row.key for row in train} == {
        f"validation/{n}" for n in raw_imagenet.validation
    }


def test_a_subset_of_the_classes_keeps_the_numbers_of_the_full_list(raw_imagenet):
    _, rows = scanned(
        raw_imagenet, ["train"], synsets=["n00000000", *raw_imagenet.synsets, "n99999999"]
    )
    assert {row.key.split("/")[1]: row.columns["label"] for row in rows} == {
        s: i + 2 for i, s in enumerate(raw_imagenet.synsets)
    }


def test_validation_labels_go_by_the_number_in_the_name_not_by_position(raw_imagenet):
    del raw_imagenet.validation["ILSVRC2012_val_00000002.JPEG"]
    raw_imagenet.validation = dict(reversed(raw_imagenet.validation.items()))
    _, rows = scanned(raw_imagenet.write(), ["validation"])
    for row in rows:
        number = int(re.search(r"val_(\d+)", row.key)[1])
        assert row.columns["synset"].decode() == raw_imagenet.validation_labels[number - 1]


def test_rows_that_cannot_become_records_carry_the_reason(raw_imagenet):
    raw_imagenet.train["n00000001"]["n00000001_0.JPEG"] = b""
    raw_imagenet.validation["ILSVRC2012_val_00000099.JPEG"] = b"x"
    raw_imagenet.validation["thumbs.db"] = b"x"
    _, rows = scanned(raw_imagenet.write())
    assert {row.key: row.error for row in rows if row.error} == {
        "train/n00000001/n00000001_0.JPEG": "an empty file, or a link to none",
        "validation/ILSVRC2012_val_00000099.JPEG": "no label: synset_labels.txt has none for this file name",
        "validation/thumbs.db": "no label: synset_labels.txt has none for this file name",
    }


def test_a_truncated_tar_is_reported_as_a_row_with_an_error(raw_imagenet):
    path = raw_imagenet.directory / "ILSVRC2012_img_val.tar"
    path.write_bytes(path.read_bytes()[:1500])
    _, rows = scanned(raw_imagenet, ["validation"])
    assert rows[-1].key == "validation/ILSVRC2012_img_val.tar/"
    assert "breaks off as a tar" in rows[-1].error


@pytest.mark.parametrize(
    "fields", [{}, {"words": ("a" * 50, "b", "c" * 90)}, {"form_name": "tfds"}], ids=str
)
def test_predicted_sizes_are_within_a_few_bytes_of_the_real_ones(raw_imagenet, fields):
    converter, rows = scanned(raw_imagenet)
    converter = dataclasses.replace(converter, **fields)
    for row, predicted in zip(rows, converter.record_bytes(References.of(rows)), strict=True):
        data = next(STORAGE.read_ranges([(row.file.uri, row.offset, row.size)]))
        actual = len(encode_example(converter.schema, converter.convert(row, data).features))
        assert abs(int(predicted) - actual) <= 12


def test_missing_files_are_named_with_the_layout(raw_imagenet):
    (raw_imagenet.directory / "synset_labels.txt").unlink()
    with pytest.raises(
        RawDataError, match=r"does not have the validation split\. It needs .* synset_labels\.txt"
    ):
        scanned(raw_imagenet)
    assert scanned(raw_imagenet, ["train"])[1]


def test_classes_that_are_not_in_the_list_are_named_with_their_place(raw_imagenet):
    with pytest.raises(
        LabelError,
        match=r"n00000003\.tar of .*train\.tar: class 'n00000003' is not in the label list",
    ):
        scanned(raw_imagenet, ["train"], synsets=raw_imagenet.synsets[:2])
    raw_imagenet.validation_labels[2] = "n77777777"
    with pytest.raises(
        LabelError, match=r"validation image 3 in .*synset_labels\.txt: class 'n77777777'"
    ):
        scanned(raw_imagenet.write())


def test_a_label_file_may_name_its_classes_but_not_list_one_twice(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("n2 tench, Tinca tinca\nn1\tgoldfish\n\n")
    assert tuple(read_synsets(str(path))) == ("n1", "n2")
    # Notepad's mark is no part of the first class
    path.write_text("n1\nn2\n", encoding="utf-8-sig")
    assert tuple(read_synsets(str(path))) == ("n1", "n2")
    path.write_text("n1\nn2\nn1\n")
    with pytest.raises(LabelError, match="n1 is listed twice"):
        read_synsets(str(path))
    path.write_text("\n")
    with pytest.raises(LabelError, match="it has no classes"):
        read_synsets(str(path))


def train_of(synsets):
    return RawImagenet(
        tuple(Source("train", "x.tar", Stat(1), tag=synset) for synset in synsets), ()
    )


def test_the_full_set_has_all_thousand_classes_and_a_missing_one_is_named():
    synsets = list(ilsvrc2012_synsets())
    check_full_set(train_of(synsets), ["train"])
    with pytest.raises(
        RawDataError, match=rf"train has 998 classes of 1,000: {synsets[5]} is missing, and 1 more"
    ):
        check_full_set(train_of(synsets[:5] + synsets[6:-1]), ["train"])


def test_other_validation_labels_than_the_official_ones_are_refused():
    with pytest.raises(RawDataError, match="the 2 validation labels are not the official 50,000"):
        check_full_set(RawImagenet((), ("n01440764", "n01443537")), ["validation"])


@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["run", "dry"])
def test_a_wrong_number_of_images_stops_the_conversion_before_anything_is_written(
    raw_imagenet, out, monkeypatch, flags
):
    monkeypatch.setattr("converters.imagenet_to_gcs.check_full_set", lambda *_: None)
    monkeypatch.setattr("converters.imagenet_to_gcs._converter", converter_of(raw_imagenet))
    with pytest.raises(
        ConversionError, match="'train' has 18 records in the raw data; the full set has 1,281,167"
    ):
        raw_imagenet.convert(out, "--full-set", "--splits=train", *flags)
    assert not list(out.glob("train*"))


def converter_of(raw):
    from converters.imagenet.converter import ImagenetConverter

    return lambda _: ImagenetConverter(tuple(raw.synsets))


def test_a_class_list_of_ones_own_is_not_the_full_set(raw_imagenet, tmp_path):
    with pytest.raises(OptionError, match="--full-set means ILSVRC2012's own 1000 classes"):
        raw_imagenet.convert(tmp_path, "--full-set")
