"""The layouts that raw ImageNet comes in: told apart by content, equal in the shards they give."""

import csv
import gzip

import pytest

from converters.imagenet.layouts import find_raw
from pipeline.errors import ConversionError, LabelError, RawDataError
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")


def shards_alone(digests):
    return {name: digest for name, digest in digests.items() if name != "manifest.json"}


def compress(raw, *names):
    for name in names:
        path = raw.directory / name
        path.with_name(f"{name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def as_class_folders(raw):
    """As torchvision wants them: no file with labels."""
    for name, synset in zip(sorted(raw.validation), raw.validation_labels, strict=True):
        folder = raw.directory / "val" / synset
        folder.mkdir(parents=True, exist_ok=True)
        (raw.directory / "validation" / name).rename(folder / name)
    (raw.directory / "validation").rmdir()
    (raw.directory / "synset_labels.txt").unlink()


def kaggle_table(raw):
    rows = zip(sorted(raw.validation), raw.validation_labels, strict=True)
    lines = [
        f"{name.removesuffix('.JPEG')},{synset} 1 2 30 40 {synset} 5 6 7 8 \n"
        for name, synset in rows
    ]
    return "".join(["ImageId,PredictionString\n", *reversed(lines)])


def as_kaggle(raw):
    images = raw.directory / "ILSVRC/Data/CLS-LOC"
    images.mkdir(parents=True)
    (raw.directory / "train").rename(images / "train")
    (raw.directory / "validation").rename(images / "val")
    (raw.directory / "LOC_val_solution.csv").write_text(kaggle_table(raw))
    (raw.directory / "synset_labels.txt").unlink()


@pytest.mark.parametrize(
    "arrange", [lambda _: None, as_class_folders, as_kaggle], ids=["extracted", "class", "kaggle"]
)
def test_every_layout_gives_the_shards_of_the_tars(
    raw_imagenet, raw_folders, tmp_path, shard_digests, arrange
):
    arrange(raw_folders)
    for raw, out in ((raw_imagenet, "a"), (raw_folders, "b")):
        raw.convert(tmp_path / out, "--num-train-shards=4", "--num-validation-shards=2")
    assert shards_alone(shard_digests(tmp_path / "a")) == shards_alone(
        shard_digests(tmp_path / "b")
    )
    a, b = (read_manifest(str(tmp_path / out)).split("train") for out in "ab")
    assert (a.fingerprint, a.key_digest) == (b.fingerprint, b.key_digest)


def test_a_tar_for_one_split_and_a_folder_for_the_other_is_fine(raw_imagenet, raw_folders, out):
    (raw_imagenet.directory / "ILSVRC2012_img_val.tar").unlink()
    (raw_folders.directory / "validation").rename(raw_imagenet.directory / "validation")
    raw_imagenet.convert(out)
    assert {name: s.num_records for name, s in read_manifest(str(out)).splits.items()} == {
        "train": 18, "validation": 4,
    }  # fmt: skip


def test_compressed_tars_are_streamed_once_and_leave_nothing(
    raw_imagenet, tmp_path, out, shard_digests
):
    raw_imagenet.convert(tmp_path / "plain")
    compress(raw_imagenet, "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar")
    raw_imagenet.convert(out)
    assert shard_digests(out) == shard_digests(tmp_path / "plain")
    assert not [path for path in out.rglob("*") if path.suffix in (".tar", ".tmp")]


def test_foreign_files_in_a_class_folder_are_rejected_by_name(raw_folders, out):
    (raw_folders.directory / "train/n00000001/inner").mkdir()
    (raw_folders.directory / "train/n00000001/notes.txt").write_text("x")
    (raw_folders.directory / "train/n00000002/empty.JPEG").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"3 bad records") as error:
        raw_folders.convert(out, "--splits=train")
    for line in (
        "inner: a folder, not a file",
        "notes.txt: not a JPEG or PNG file",
        "empty.JPEG: an empty file, or a link to none",
    ):
        assert line in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ILSVRC2012_val_00000002", "n00000001_2", r"csv, line 4: .* is not like ImageId=ILSVRC2012_val_00000001"),
        ("PredictionString", "Prediction", r"csv, line 2: .* of another competition"),
        ("ILSVRC2012_val_00000003", "ILSVRC2012_val_00000009", r"csv has 4 images, but none with number 3\. It"),
        ("ILSVRC2012_val_00000003", "ILSVRC2012_val_²", r"csv, line \d: .* is not like ImageId="),
        ("ILSVRC2012_val_00000003", '"' + "x" * 200_000, r"csv, after line 2: not a csv table: field larger than"),
    ],
)  # fmt: skip
def test_a_table_of_labels_that_is_not_kaggles_is_refused_with_its_line(
    raw_folders, out, old, new, message
):
    as_kaggle(raw_folders)
    path = raw_folders.directory / "LOC_val_solution.csv"
    path.write_text(kaggle_table(raw_folders).replace(old, new))
    limit = csv.field_size_limit(1 << 17)  # Python's own; the tables of other converters raise it
    with pytest.raises(RawDataError, match=message):
        raw_folders.convert(out)
    csv.field_size_limit(limit)


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (lambda d: (d / "train/readme.txt").write_text("x"), RawDataError, r"train has files next to its class"),
        (lambda d: (d / "train/n77777777").mkdir(), LabelError, r"folder .*/train/n77777777: class 'n77777777'"),
        (lambda d: (d / "train").rename(d / "Train"), RawDataError, r"does not have the train split\. .* It has:"),
        (lambda d: (d / "synset_labels.txt").write_bytes(b"n00000001\xff"), LabelError, r"synset_labels\.txt"),
        (lambda d: (d / "synset_labels.txt").unlink(), RawDataError, r"does not have the validation split\. It needs"),
    ],
)  # fmt: skip
def test_a_layout_that_is_not_quite_right_is_one_clear_error(raw_folders, spoil, error, message):
    spoil(raw_folders.directory)
    with pytest.raises(error, match=message):
        find_raw(str(raw_folders.directory), ["train", "validation"], raw_folders.synsets, None)


def test_a_train_folder_without_classes_is_one_clear_error(tmp_path):
    (tmp_path / "train").mkdir()
    with pytest.raises(RawDataError, match="has no class folders in it"):
        find_raw(str(tmp_path), ["train"], ["n1"], None)
