"""verify names all that is damaged, and where; and nothing that is not."""

import json
import os
import shutil
import struct
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from damage import flip

from pipeline.commands import split_verifier
from pipeline.commands.verify import main
from pipeline.errors import ManifestError, OptionError
from pipeline.shards.frames import FRAME_BYTES, crc32c
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.split_index import load_index
from pipeline.storage.local import LocalStorage

SIZES = (5, 0, 7, 1)
SHARD = "train-00002-of-00004"  # the one of 7


@pytest.fixture
def directory(numbers_of, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(numbers_of(*SIZES), tmp_path / "data"))


def places(directory, split="train"):
    """Of each record: file, number in it, offset, length of its payload."""
    storage, manifest = LocalStorage(), read_manifest(str(directory))
    index = load_index(storage, str(directory), split, manifest.splits[split])
    found = index.locate(np.arange(len(index.lengths)))
    files = [manifest.splits[split].shards[shard].file for shard in found.shard]
    return list(
        zip(files, found.record.tolist(), found.offset.tolist(), found.length.tolist(), strict=True)
    )


def edit_manifest(directory, change) -> None:
    path = Path(directory) / "manifest.json"
    data = json.loads(path.read_text())
    data.pop("checksum", None)  # as of a manifest of before there was one
    change(data)
    path.write_text(json.dumps(data))


def test_verify_reports_intact_data_and_what_it_could_not_prove(directory, verify):
    status, printed, damage = verify(directory)
    assert (status, damage) == (0, [])
    assert "13 of 13" in printed
    assert printed.count("intact") == 2
    assert (
        printed.count(
            "\nrecords of 'numbers' do not contain their keys, so no key digest can be compared."
        )
        == 1
    )
    assert "This is normal" in printed
    assert "To repair" not in printed


AT = {
    "length": (0, "header says"),
    "length crc": (9, "checksum of its length"),
    "payload": (14, "its payload has crc32c"),
}


@pytest.mark.parametrize("part", [*AT, "footer"])
def test_every_flipped_bit_is_named_by_shard_record_and_offset(directory, verify, part):
    records = [place for place in places(directory) if place[0] == SHARD]
    for _, _, offset, length in (records[2], records[5]):
        flip(directory / SHARD, offset + (AT[part][0] if part in AT else FRAME_BYTES - 1 + length))
    status, printed, damage = verify(directory)
    assert status == 1
    assert len(damage) == 3
    for line, (_, record, offset, _) in zip(damage, (records[2], records[5]), strict=False):
        assert f"{SHARD}, record {record} at byte {offset}: " in line
        assert (AT[part][1] if part in AT else "not the one stored after it") in line
    assert f"{directory}/{SHARD}: has " in damage[2]
    assert "11 of 13" in printed
    assert "its command with --splits=train --verify-existing" in printed  # validation is intact


def test_an_intact_record_in_the_wrong_place_is_named(directory, verify):
    (_, _, first, length), (_, _, second, _) = [
        place for place in places(directory) if place[0] == SHARD
    ][3:5]
    data, size = (directory / SHARD).read_bytes(), length + FRAME_BYTES
    end = second + size
    (directory / SHARD).write_bytes(
        data[:first] + data[second:end] + data[first:second] + data[end:]
    )
    _, _, damage = verify(directory)
    assert len(damage) == 3
    assert "record 3" in damage[0]
    assert "record 4" in damage[1]
    assert "(an intact record, but another one)" in damage[0]


def test_a_truncated_shard_names_the_record_that_is_cut_and_counts_those_after_it(
    directory, verify
):
    _, _, offset, _ = [place for place in places(directory) if place[0] == SHARD][4]
    os.truncate(directory / SHARD, offset + 15)
    status, printed, damage = verify(directory)
    assert status == 1
    text = f"record 4 at byte {offset}: the shard ends inside it, at byte {offset + 15}; it and all 2 records after it"
    assert text in damage[0]
    assert f"has {offset + 15} bytes" in damage[1]
    assert "10 of 13" in printed


@pytest.mark.parametrize("piece_bytes", [1, 7, 29, 10**6])
def test_bytes_after_the_last_record_are_damage_whatever_the_read_size(
    directory, verify, monkeypatch, piece_bytes
):
    monkeypatch.setattr(split_verifier, "PIECE_BYTES", piece_bytes)
    assert verify(directory)[::2] == (0, [])
    with (directory / SHARD).open("ab") as file:
        file.write(bytes(50))
    _, printed, damage = verify(directory)
    data = (directory / SHARD).read_bytes()
    assert len(damage) == 1
    assert (
        f"{SHARD}: has {len(data)} bytes with crc32c {crc32c(data):08x}, the manifest says {len(data) - 50} "
        in damage[0]
    )
    assert "13 of 13" in printed


def test_missing_replaced_and_extra_shards_are_named(directory, verify):
    (directory / "train-00000-of-00004").unlink()
    shutil.copy(directory / "train-00003-of-00004", directory / SHARD)
    shutil.copy(directory / SHARD, directory / "train-00000-of-00009")
    _, _, damage = verify(directory, "--split", "train")
    assert "train-00000-of-00009: is not in the manifest" in damage[0]
    assert "train-00000-of-00004: is missing, with its 5 records" in damage[1]
    assert f"{SHARD}, record 0 at byte 0: " in damage[2]
    assert f"{SHARD}, record 1 at byte" in damage[3]
    assert f"{SHARD}: has " in damage[4]
    assert len(damage) == 5


def test_a_damaged_index_is_named_and_records_are_then_proven_by_their_own_checksums(
    directory, verify
):
    index = directory / "_index/train.npy"
    flip(index, -1)
    _, printed, damage = verify(directory)
    assert len(damage) == 1
    assert "_index/train.npy: has crc32c" in damage[0]
    assert "13 of 13" in printed
    _, _, offset, _ = next(place for place in places(directory, "validation") if place[1] == 2)
    flip(directory / "train-00000-of-00004", offset + 14)
    flip(directory / SHARD, offset)
    index.unlink()
    _, printed, damage = verify(directory)
    assert "_index/train.npy: cannot read" in damage[0]
    assert f"train-00000-of-00004, record 2 at byte {offset}: its payload has crc32c" in damage[1]
    assert (
        f"{SHARD}, record 2 at byte {offset}: the checksum of its length is wrong; without an index"
        in damage[3]
    )
    assert len(damage) == 5
    assert "7 of 13" in printed


MANIFEST = {
    "crc32c of a shard": lambda entry: entry["shards"][2].update(
        crc32c=entry["shards"][2]["crc32c"] ^ 1
    ),
    "bytes of a shard": lambda entry: entry["shards"][2].update(
        bytes=entry["shards"][2]["bytes"] + 1
    ),
    "records of a shard": lambda entry: entry["shards"][2].update(records=8),
    "crc32c of the index": lambda entry: entry.update(index_crc32c=entry["index_crc32c"] ^ 1),
}


@pytest.mark.parametrize("field", MANIFEST)
def test_an_edited_manifest_is_reported_to_disagree_with_the_shards(directory, verify, field):
    edit_manifest(directory, lambda data: MANIFEST[field](data["splits"]["train"]))
    status, printed, damage = verify(directory)
    assert status == 1
    assert "13 of 1" in printed  # 13, or 14 where the manifest says so: every record is whole
    assert all((SHARD if "shard" in field else "_index/train.npy") in line for line in damage[-1:])
    assert all("/train" in line for line in damage)


def test_a_dataset_that_cannot_be_verified_is_one_line_and_exit_code_2(directory, tmp_path):
    with pytest.raises(
        ManifestError, match=r"manifest\.json does not exist: there is no such directory"
    ):
        main([str(tmp_path / "nowhere")])
    with pytest.raises(OptionError, match=r"has no split 'trian'\. Did you mean 'train'\?"):
        main([str(directory), "--split", "train", "trian"])
    edit_manifest(directory, lambda data: data["splits"].clear())
    with pytest.raises(
        ManifestError, match="the manifest has no splits, so there is nothing to verify"
    ):
        main([str(directory)])
    (directory / "manifest.json").write_text("{")
    command = [sys.executable, "-m", "pipeline.commands.verify", str(directory)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {directory}/manifest.json is not JSON")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_memory_does_not_grow_with_the_shard(write_dataset, tmp_path, verify):
    schema = Schema("bytes", {"data": Feature("bytes")})
    records = [{"data": bytes([i]) * 500_000} for i in range(100)]
    directory = write_dataset(tmp_path / "large", {"train": [records]}, schema)
    tracemalloc.start()
    status, _, _ = verify(directory)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert status == 0
    assert peak < 20e6  # of 50e6


def offsets_and_sizes(data: bytes) -> list[str]:
    """What DALI's tfrecord2idx writes of a file: it goes from header to header."""
    lines, at = [], 0
    while at < len(data):
        size = 8 + 4 + struct.unpack_from("<q", data, at)[0] + 4
        lines.append(f"{at} {size}\n")
        at += size
    return lines


@pytest.mark.parametrize("where", [(), ("elsewhere",)])
def test_dalis_index_has_offset_and_size_of_every_record(directory, verify, tmp_path, where):
    where = [str(tmp_path / name) for name in where]
    os.truncate(directory / "validation-00000-of-00004", 14)
    for _ in range(2):  # the second time over the files of the first
        _, printed, _ = verify(directory, "--dali-index", *where)
    index = Path(*where) if where else directory / "_dali"
    assert sorted(file.name for file in index.iterdir()) == [
        f"train-0000{i}-of-00004.idx" for i in range(4)
    ]
    for file in index.iterdir():
        shard = (directory / file.stem).read_bytes()
        assert file.read_text() == "".join(offsets_and_sizes(shard))
    assert "validation: no DALI index, because the split is damaged." in printed
    assert len(list(directory.glob("train*"))) == 4  # what readers glob
