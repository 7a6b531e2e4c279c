"""Damage as a disk does it, to records that are already converted; and what a checkpoint states of its description."""

import json
from pathlib import Path

import numpy as np

from pipeline.shards.typed_json import sealed
from pipeline.sources.open_dataset import open_dataset

__all__ = ["bind_to_description", "flip", "flip_payload_bits"]


def flip(path: Path, byte: int, bit: int = 4) -> None:
    """Changes a byte of a file, and nothing else."""
    data = bytearray(path.read_bytes())
    data[byte] ^= bit
    path.write_bytes(data)


def flip_payload_bits(directory: str, split: str, *record_ids: int) -> None:
    """Flips a bit in the middle of the payload of each of these records."""
    reader = open_dataset(directory, split).source
    place = reader.index.locate(np.array(record_ids))
    for shard, offset, length in zip(place.shard, place.offset, place.length, strict=True):
        with Path(directory, reader.entry.shards[shard].file).open("r+b") as file:
            file.seek(offset + 12 + length // 2)
            byte = file.read(1)[0]
            file.seek(-1, 1)
            file.write(bytes([byte ^ 8]))


def bind_to_description(checkpoint: Path, checksum: str | None) -> None:
    """Has a checkpoint state this checksum of its description, as whoever makes one can. None: it states none."""
    file = checkpoint / "contents/metadata"
    page = json.loads(file.read_text()) | {"description": checksum}
    left_out = ("checksum", *["description"] * (checksum is None))
    file.write_text(json.dumps(sealed({k: v for k, v in page.items() if k not in left_out})))
