"""Which split a file belongs to, and what is never left out silently."""

import json
from typing import Any, cast

import numpy as np
import pytest

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import OptionError, RawDataError, ShardError
from pipeline.formats import TextLines
from pipeline.shards.schema import Labels
from pipeline.sources.named_splits import (
    files_by_name,
    files_by_pattern,
    matching_files,
    parse_assignment,
    split_of,
    tfds_classes,
    tfds_labels,
)
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat

NAMES = {
    "train-00000-of-00010": "train",
    "imagenet2012-train.tfrecord-00000-of-00016": "train",
    "train.tfrecord": "train",
    "TRAIN_00012.tfrec": "train",
    "mnist_train.tfrecords": "train",
    "valid-3-of-4.tfrecord.gz": "validation",
    "ds-val.tfrecord": "validation",
    "my-data-dev-0": "validation",
    "testing.tfrecord": "test",
    "librispeech-train_clean100.tfrecord-00000-of-00002": "train_clean100",
    "imdb-unsupervised.tfrecord-00000-of-00001": None,
    "train_val.tfrecord": None,
    "train-test.tfrecord": None,
    "training_test_data": None,
    "constrained.tfrecord": None,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_split_of_a_file_follows_from_its_name(name):
    assert split_of(name) == NAMES[name]


def listed(*names):
    return dict.fromkeys(names, Stat(7))


def test_only_what_looks_like_a_tfrecord_is_taken_and_in_the_order_of_names():
    beside = ["manifest.json", "train.tfrecord.idx", ".train.tfrecord", "train-notes.txt", "test"]
    files = files_by_name(
        "d", listed("train-00001-of-00002", *beside, "train-00000-of-00002", "val.tfrecord")
    )
    assert {split: list(named) for split, named in files.items()} == {
        "train": ["train-00000-of-00002", "train-00001-of-00002"],
        "validation": ["val.tfrecord"],
    }


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ("train.tfrecord part-0-of-1", "cannot tell the split of part-0-of-1: .* train=PATTERN"),
        ("train-0-of-4 train-2-of-4", "2 of 4 files of 'train' are missing: train-1-of-4, train-3"),
        ("train-0-of-99999999999", "99999999998 of 99999999999 files .* and 99999999993 more"),
        (
            "train-0-of-1 train-0-of-2 train-1-of-2",  # of an older writer, too
            r"belong to several sets: -of-1, -of-2\. Remove the outdated one",
        ),
    ],
)
def test_files_of_no_split_and_sets_that_are_not_complete_are_refused(names, text):
    with pytest.raises(RawDataError, match=f"^d: .*{text}"):
        files_by_name("d", listed(*names.split()))


def test_a_pattern_takes_what_it_matches_also_in_folders_below(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b-1", "b-0", "a-0", ".b-2", "deep/b-7"):
        (tmp_path / name).write_bytes(b"7 bytes")
    files = files_by_pattern(
        LocalStorage(), str(tmp_path), [("train", "b-*"), ("train", "deep/b-?"), ("test", "a*")]
    )
    assert {split: list(named) for split, named in files.items()} == {
        "train": ["b-0", "b-1", "deep/b-7"],
        "test": ["a-0"],
    }
    with pytest.raises(OptionError, match=r"/c\* matches no file\. .* has: a-0, b-0, b-1\."):
        files_by_pattern(LocalStorage(), str(tmp_path), [("train", "c*")])
    with pytest.raises(OptionError, match=r"b-0 matches a pattern of 'train' and one of 'test'"):
        files_by_pattern(LocalStorage(), str(tmp_path), [("train", "b-*"), ("test", "*-0")])


@pytest.mark.parametrize("text", ["train", "train=", "=x", "Train=x"])
def test_a_malformed_assignment_is_refused(text):
    with pytest.raises(OptionError):
        parse_assignment("--pattern", text)


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("b.bin", "a.bin", "a[1].bin", "notes.txt", ".hidden.bin"):
        (tmp_path / name).write_bytes(b"xyz")
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("uri", "names"),
    [
        ("{}/a.bin", ["a.bin"]),
        ("{}/*.bin", ["a.bin", "a[1].bin", "b.bin"]),
        ("{}/[ab].bin", ["a.bin", "b.bin"]),
        ("{}/a[1].bin", ["a[1].bin"]),
        ("{}", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
        ("{}/", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
        ("*.txt", ["notes.txt"]),
        ("a.bin", ["a.bin"]),
        ("a[1].bin", ["a[1].bin"]),
        (".", ["a.bin", "a[1].bin", "b.bin", "notes.txt"]),
    ],
)
def test_a_file_a_directory_or_a_pattern_names_files(files, uri, names):
    found = matching_files(uri.format(files), LocalStorage())
    assert [path.rpartition("/")[2] for path in found] == names
    assert {stat.bytes for stat in found.values()} == {3}
    assert all(LocalStorage().read(path) == b"xyz" for path in found)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("{}/c.bin", r"c\.bin is neither a file nor a directory with files"),
        ("{}/folder", "folder is neither a file nor a directory with files"),
        ("{}/*.tfrecord", r"matches no file\. .* has: a\.bin, a\[1\]\.bin, b\.bin, notes\.txt\."),
        ("{}/*/a.bin", r"\*/a\.bin is neither a file"),
        ("nowhere/*", r"nowhere/\* matches no file\. nowhere has: nothing"),
    ],
)
def test_a_pattern_without_files_is_refused(files, uri, text):
    with pytest.raises(OptionError, match=text):
        matching_files(uri.format(files), LocalStorage())


def test_values_that_are_not_datasets_are_refused_with_what_to_give(images):
    nothing: list[Any] = [None, np.zeros(3), 7, (name for name in [images])]
    for data in nothing:
        with pytest.raises(
            OptionError, match="is not a dataset. Give a directory, a file or a pattern; a dict of"
        ):
            train_dataset(data, global_batch=1)
    with pytest.raises(
        OptionError, match=r"TextLines'> is not known\. Known: FixedLength\(\.\.\.\), TextLines\(\)"
    ):
        open_dataset(images, format=cast(Any, TextLines))
    with pytest.raises(OptionError, match="split='': '' is not a split"):
        open_dataset(images, "")


def test_a_text_file_opened_as_tfrecords_is_an_error_that_suggests_a_format(tmp_path):
    (tmp_path / "lines.txt").write_text("one line of text\n" * 9)
    with pytest.raises(ShardError, match=r"lines\.txt, record 0 at byte 0") as caught:
        open_dataset(tmp_path / "lines.txt")
    assert caught.value.__notes__ == [
        "If these are not TFRecord files, give a format: TextLines() or FixedLength(...)."
    ]


def described(names=None, **num_classes):
    kinds = {
        key: {"classLabel": {"numClasses": str(number)}} for key, number in num_classes.items()
    }
    features = {"image": {"image": {}}, **kinds}
    texts = {"features.json": json.dumps({"featuresDict": {"features": features}})}
    return texts | ({"label.labels.txt": "\n".join(names) + "\n"} if names else {})


@pytest.mark.parametrize("names", [["cat", "dog"], ["cat ", "", "dog"]])
def test_names_of_classes_are_those_that_tfds_reads_in_the_file(names):
    files = described(names, label=2)
    assert tfds_classes(files) == tfds_labels(files) == Labels("label", 0, ("cat", "dog"))


def test_classes_without_names_are_called_by_their_numbers_as_in_tfds():
    assert tfds_classes(described(digit=3)) == Labels("digit", 0, ("0", "1", "2"))
    assert tfds_labels(described(digit=3)) is None  # part of a conversion's plan, so it stays


def test_the_class_label_named_label_is_chosen_from_several():
    assert tfds_classes(described(label=2, other=3)) == Labels("label", 0, ("0", "1"))
    assert tfds_classes(described(first=2, other=3)) is None
    assert tfds_classes({}) is None
