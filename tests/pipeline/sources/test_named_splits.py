"""Which split a file belongs to, and what is never left out silently."""

import pytest

from pipeline.errors import OptionError, RawDataError
from pipeline.sources.named_splits import files_by_name, files_by_pattern, parse_assignment, split_of
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
    files = files_by_name("d", listed("train-00001-of-00002", *beside, "train-00000-of-00002", "val.tfrecord"))
    assert {split: list(named) for split, named in files.items()} == {
        "train": ["train-00000-of-00002", "train-00001-of-00002"],
        "validation": ["val.tfrecord"],
    }


def test_a_file_that_tells_no_split_is_named():
    with pytest.raises(RawDataError, match=r"d: cannot tell the split of part-0-of-1: .* train=PATTERN"):
        files_by_name("d", listed("train.tfrecord", "part-0-of-1"))


def test_missing_files_of_a_numbered_set_are_named():
    with pytest.raises(RawDataError, match=r"2 of 4 files of 'train' are missing: train-00001-of-00004, train-00003"):
        files_by_name("d", listed("train-00000-of-00004", "train-00002-of-00004"))


def test_files_of_an_older_writer_are_refused():
    with pytest.raises(RawDataError, match=r"belong to several sets: -of-1, -of-2\. Remove the outdated one"):
        files_by_name("d", listed("train-0-of-1", "train-0-of-2", "train-1-of-2"))


def test_a_pattern_takes_what_it_matches_also_in_folders_below(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("b-1", "b-0", "a-0", ".b-2", "deep/b-7"):
        (tmp_path / name).write_bytes(b"7 bytes")
    files = files_by_pattern(LocalStorage(), str(tmp_path), [("train", "b-*"), ("train", "deep/b-?"), ("test", "a*")])
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
