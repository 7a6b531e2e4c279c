"""A split of any number of records that takes no disk space besides its index: shards are holes, records are zeros."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.shards.frames import FRAME_BYTES, crc32c
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
from pipeline.shards.naming import shard_file
from pipeline.shards.schema import PASSED_ON, Schema
from pipeline.storage.local import LocalStorage

LENGTH = 116  # bytes of a record


def write_sparse(directory: Path, num_records: int, num_shards: int) -> str:
    """Writes the split "train", whose frames nobody can check. Returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    count = num_records // num_shards
    size = count * (LENGTH + FRAME_BYTES)
    shards = [
        ShardEntry(shard_file("train", shard, num_shards), count, size, 0)
        for shard in range(num_shards)
    ]
    for shard in shards:
        (directory / shard.file).touch()
        os.truncate(directory / shard.file, size)
    storage = LocalStorage()
    rows = np.full((count, 2), (LENGTH, crc32c(bytes(LENGTH))), np.uint32)

    def rows_of_shards() -> Iterator[np.ndarray]:
        yield from (rows for _ in shards)

    crc = write_index(storage, str(directory), "train", count * num_shards, rows_of_shards())
    entry = SplitEntry(tuple(shards), crc, "", "", seed=0)
    manifest = Manifest(PASSED_ON, Schema(PASSED_ON, {}), {"train": entry})
    update_manifest(storage, str(directory), lambda _: manifest)
    return str(directory)
