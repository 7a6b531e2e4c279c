"""One flipped bit, anywhere in shards, index or manifest: whoever reads is told where, and so is who verifies.

Nothing that is delivered as a record, and nothing that is said of records, can be another by one bit, in silence."""

import dataclasses
import itertools
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from raw_data.imagenet import RawImagenet
from sweep import SWEEP

from pipeline.commands.verify import main as verify_main
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import (
    ConversionError,
    CorruptRecordError,
    InfeedError,
    ManifestError,
    ShardError,
)
from pipeline.shards.frames import FRAME_BYTES, HEADER_BYTES
from pipeline.shards.manifest import read_manifest
from pipeline.shards.split_index import load_index
from pipeline.storage.local import LocalStorage

PLACES = 100 if SWEEP else 40
SPLITS = {"train": 18, "validation": 6}


@pytest.fixture(scope="module")
def convert(tmp_path_factory):
    """convert(directory): runs the command into it."""
    raw = RawImagenet(tmp_path_factory.mktemp("flips") / "raw", validation=6).write()
    return lambda out: raw.convert(out, "--num-train-shards=4")


@pytest.fixture(scope="module")
def converted(convert, tmp_path_factory):
    """What a real conversion leaves: labels, documentation, several shards."""
    out = tmp_path_factory.mktemp("flips") / "out"
    convert(out)
    return out


@dataclass(frozen=True)
class Flip:
    """One bit of one file; `undo` gives the file back as it was."""

    path: Path
    byte: int
    bit: int

    def do(self):
        data = bytearray(self.path.read_bytes())
        data[self.byte] ^= 1 << self.bit
        self.path.write_bytes(data)

    undo = do

    def __str__(self):
        return f"bit {self.bit} of byte {self.byte} of {self.path.name}"


@pytest.fixture
def flips(converted, tmp_path):
    """flips("*-of-*"): random places in these files, each flipped while the caller looks at it."""
    copy = Path(shutil.copytree(converted, tmp_path / "copy"))

    def each(pattern):
        files = sorted(copy.glob(pattern))
        ends = np.cumsum([file.stat().st_size for file in files])
        random = np.random.default_rng(len(pattern))
        for place in random.choice(8 * ends[-1], PLACES, replace=False).tolist():
            number = int(np.searchsorted(ends, place // 8, side="right"))
            flip = Flip(
                files[number],
                int(place // 8 - (ends[number] - files[number].stat().st_size)),
                place % 8,
            )
            flip.do()
            yield flip
            flip.undo()

    return each


def read_all(directory, split):
    """Opens the split and reads it both ways: what is told of each, "" where nothing is wrong."""
    size = SPLITS[split]
    return [
        outcome(lambda: list(eval_dataset(directory, split, global_batch=4, keys=()).batches())),
        outcome(
            lambda: epoch(train_dataset(directory, split, global_batch=size, streams=1, keys=()))
        ),
    ]


def epoch(source):
    batches = source.batches()
    try:
        return list(itertools.islice(batches, source.steps_per_epoch))
    finally:
        batches.close()


def outcome(read):
    try:
        read()
    except InfeedError as error:
        return error
    return None


def place_in(directory, flip):
    """The record that has this byte, "<shard>, record 3 at byte 700", and whether the byte is of its payload."""
    split = flip.path.name.partition("-")[0]
    manifest = read_manifest(str(directory))
    index = load_index(LocalStorage(), str(directory), split, manifest.splits[split])
    where = index.locate(np.arange(len(index.lengths)))
    files = np.array([shard.file for shard in manifest.splits[split].shards])[where.shard]
    (inside,) = np.flatnonzero(
        (files == flip.path.name)
        & (where.offset <= flip.byte)
        & (flip.byte < where.offset + where.length + FRAME_BYTES)
    )
    inner = 0 <= flip.byte - where.offset[inside] - HEADER_BYTES < where.length[inside]
    return f"{flip.path.name}, record {where.record[inside]} at byte {where.offset[inside]}", bool(
        inner
    )


def verified(directory, capsys, split):
    status = verify_main([str(directory), "--split", split])
    return status, [
        line for line in capsys.readouterr().out.splitlines() if line.startswith("damaged: ")
    ]


@pytest.mark.slow
def test_a_flip_in_a_shard_is_named_by_shard_record_and_offset(flips, capsys):
    # Readers do not look at frames, for the index says all that these say: damage to one alone changes no record.
    in_payloads = []
    for flip in flips("*-of-*"):
        directory, split = flip.path.parent, flip.path.name.partition("-")[0]
        place, in_payload = place_in(directory, flip)
        in_payloads.append(in_payload)
        for error in read_all(str(directory), split):
            assert type(error) is (CorruptRecordError if in_payload else type(None)), flip
            assert not in_payload or place in str(error), flip
        status, damage = verified(directory, capsys, split)
        assert status == 1
        assert f"{directory}/{place}: " in damage[0], flip
        assert f"{flip.path}: has " in damage[1]  # the file's own checksum
        assert len(damage) == 2
    assert PLACES * 0.9 < sum(in_payloads) < PLACES


def test_a_flip_in_an_index_is_named_before_any_record_is_read(flips, capsys):
    for flip in flips("_index/*.npy"):
        directory, split = flip.path.parents[1], flip.path.stem
        for error in read_all(str(directory), split):
            assert type(error) is ShardError, flip
            assert str(error).startswith(f"{flip.path} has crc32c "), flip
        assert verified(directory, capsys, split)[1][0].startswith(
            f"damaged: {flip.path}: has crc32c "
        ), flip


def test_a_flipped_bit_in_a_manifest_is_found_or_has_no_effect(flips, converted):
    whole = read_manifest(str(converted))
    for flip in flips("manifest.json"):
        directory = str(flip.path.parent)
        # a letter of a \u escape in upper case
        if outcome(partial(read_manifest, directory)) is None:
            assert read_manifest(directory) == dataclasses.replace(whole, directory=directory), flip
            continue
        for error in (*read_all(directory, "train"), outcome(partial(verify_main, [directory]))):
            assert type(error) is ManifestError, flip
            assert str(error).startswith(f"{directory}"), flip
            assert "Copy it again" in str(error), flip


def test_a_damaged_manifest_is_mended_as_its_error_says(
    convert, converted, shard_digests, tmp_path
):
    copy = Path(shutil.copytree(converted, tmp_path / "copy"))
    manifest = copy / "manifest.json"
    manifest.write_text(manifest.read_text().replace("n00000002", "n00000003"))
    written = {file: file.stat().st_mtime_ns for file in copy.glob("*-of-*")}
    with pytest.raises(
        ConversionError, match="it is damaged.*Copy it again; or delete it and run the command that"
    ):
        convert(copy)
    manifest.unlink()
    convert(copy)
    assert shard_digests(copy) == shard_digests(converted)
    assert {file: file.stat().st_mtime_ns for file in copy.glob("*-of-*")} == written
