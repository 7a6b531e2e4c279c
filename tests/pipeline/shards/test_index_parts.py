"""Large indexes: each part is checked when one of its records is first needed."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from damage import flip
from index_files import encode_index

from pipeline.commands import index
from pipeline.commands.verify import main as verify
from pipeline.errors import ShardError
from pipeline.shards import index_writer, split_index
from pipeline.shards.frames import crc32c
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.split_index import load_index
from pipeline.sources.open_dataset import open_dataset
from pipeline.storage.local import LocalStorage

SHARDS = (10, 3, 0, 4)  # records; of up to 4 in a part
PARTS = ("0..3", "4..7", "8..9", "10..12", "13..16")


@pytest.fixture(autouse=True)
def every_index_is_large(monkeypatch):
    for module in (split_index, index_writer):
        monkeypatch.setattr(module, "WHOLE_BYTES", 0)
    monkeypatch.setattr(split_index, "PART_RECORDS", 4)
    monkeypatch.setattr(split_index, "MARK_RECORDS", 2)


@pytest.fixture
def write(write_dataset, tmp_path):
    """write(10, 3): a dataset with shards of 10 and 3 records of different sizes."""

    def of_sizes(*sizes, text=b"x"):
        records = iter({"text": text * number} for number in range(sum(sizes)))
        shards = [[next(records) for _ in range(size)] for size in sizes]
        schema = Schema("sizes", {"text": Feature("bytes")})
        return Path(
            write_dataset(
                tmp_path / "-".join([*map(str, sizes), text.decode()]), {"train": shards}, schema
            )
        )

    return of_sizes


@pytest.fixture
def directory(write):
    return write(*SHARDS)


def damage_of(directory, capsys):
    assert verify([str(directory)]) == 1
    lines = capsys.readouterr().out.splitlines()
    return [line for line in lines if line.startswith("damaged: ")]


@pytest.mark.parametrize("record", range(sum(SHARDS)))
def test_a_flip_is_found_when_a_record_of_its_part_is_first_read(directory, capsys, record):
    index = directory / "_index/train.npy"
    payloads = list(open_dataset(directory))
    flip(index, 128 + 8 * record + record % 8)
    dataset = open_dataset(directory)
    (damaged,) = (part for part in PARTS if record in span(part))
    for number in range(sum(SHARDS)):
        if number in span(damaged):
            match = rf"^{index} has crc32c \w+ in the rows of records {damaged}, not .* convert the"
            with pytest.raises(ShardError, match=match):
                dataset[number]
            with pytest.raises(ShardError, match=match):
                dataset.source.index.locate(np.array([0, number]))
        else:
            assert dataset[number] == payloads[number]
    assert damage_of(directory, capsys)[0].startswith(f"damaged: {index}: has crc32c ")


def span(part):
    first, last = map(int, part.split(".."))
    return range(first, last + 1)


def missing(file):
    file.unlink()


@pytest.mark.parametrize(
    "change", [missing, lambda file: flip(file, 40), lambda file: file.write_bytes(b"")]
)
def test_without_intact_parts_all_of_the_index_is_checked_when_it_is_opened(
    directory, capsys, change
):
    payloads = list(open_dataset(directory))
    parts = directory / "_index/train.parts.json"
    change(parts)
    assert list(open_dataset(directory)) == payloads
    if change is not missing:
        what = f"damaged: {parts}: is damaged or belongs to another index"
        assert damage_of(directory, capsys) == [what]
    flip(directory / "_index/train.npy", 140)
    with pytest.raises(ShardError, match=r"train\.npy has crc32c \w+, the manifest says"):
        open_dataset(directory)


@pytest.mark.parametrize(("sizes", "text"), [((*SHARDS, 1), b"x"), (SHARDS, b"y")])
def test_parts_of_another_index_are_not_used(directory, write, capsys, sizes, text):
    other = write(*sizes, text=text)
    parts = directory / "_index/train.parts.json"
    parts.write_bytes((other / "_index/train.parts.json").read_bytes())
    assert len(list(open_dataset(directory))) == sum(SHARDS)
    assert len(damage_of(directory, capsys)) == 1


def test_sizes_that_are_not_those_of_the_shards_are_refused(directory):
    manifest = read_manifest(str(directory))
    entry = manifest.splits["train"]
    swapped = (entry.shards[1], entry.shards[0], *entry.shards[2:])
    object.__setattr__(entry, "shards", swapped)
    with pytest.raises(ShardError, match="belong to different conversions"):
        load_index(LocalStorage(), str(directory), "train", entry)


def test_a_pickled_copy_maps_the_index_again(directory):
    dataset = open_dataset(directory)
    index = dataset.source.index
    pickled = pickle.dumps(index)
    assert len(pickled) < 1500
    copy = pickle.loads(pickled)
    assert copy.locate_one(11) == index.locate_one(11)
    flip(directory / "_index/train.npy", 130)  # of the same pages
    with pytest.raises(ShardError, match="records 0..3"):
        copy.locate_one(2)


def test_an_index_is_written_shard_by_shard(tmp_path):
    rows = np.random.default_rng(0).integers(0, 2**32, (13, 2), np.uint32)
    storage = LocalStorage()
    crc = write_index(storage, str(tmp_path), "train", 13, iter([rows[:9], rows[9:9], rows[9:]]))
    written = (tmp_path / "_index/train.npy").read_bytes()
    assert written == encode_index(rows)
    assert crc == crc32c(written)
    parts = json.loads((tmp_path / "_index/train.parts.json").read_text())
    ends = [(0, 4), (4, 8), (8, 9), (9, 13)]
    expected = {
        "index_crc32c": crc,
        "crc32c": [crc32c(rows[first:end].tobytes()) for first, end in ends],
        "bytes": [int((rows[first:end, 0].astype(int) + 16).sum()) for first, end in ends],
        "crc_sum": [int(rows[first:end, 1].astype(int).sum() % 2**32) for first, end in ends],
    }
    assert {name: parts[name] for name in expected} == expected


def test_a_small_index_has_no_parts(tmp_path, monkeypatch):
    rows = np.ones((5, 2), np.uint32)
    for most, expected in ((167, True), (168, False)):
        monkeypatch.setattr(index_writer, "WHOLE_BYTES", most)
        directory = tmp_path / str(most)
        write_index(LocalStorage(), str(directory), "train", 5, [rows])
        assert (directory / "_index/train.parts.json").exists() == expected


def test_parts_of_an_earlier_index_do_not_stay(directory, monkeypatch):
    for name in ("manifest.json", "_index/train.npy"):
        (Path(directory) / name).unlink()
    for size, kept in ((0, True), (10**6, False)):
        monkeypatch.setattr(index_writer, "WHOLE_BYTES", size)
        assert index.main([f"{directory}/train-*", "--split=train"]) == 0
        assert (Path(directory) / "_index/train.parts.json").exists() == kept
