"""Index files for NVIDIA DALI's TFRecord reader, as its tfrecord2idx writes them: one line `offset size` per record.

They are made from the split index, without reading shards, and get a directory of their own, because readers that
match names would mistake train-00000-of-00015.idx for a shard."""

import numpy as np

from pipeline.errors import OptionError
from pipeline.shards.manifest import SplitEntry
from pipeline.shards.record import FRAME_BYTES
from pipeline.shards.split_index import SplitIndex
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import in_parallel, join

__all__ = ["DALI_DIRECTORY", "write_dali_index"]

DALI_DIRECTORY = "_dali"


def write_dali_index(directory: str, entry: SplitEntry, index: SplitIndex) -> list[str]:
    """Publishes <directory>/<shard>.idx for each shard. Returns the paths in shard order.

    Pass them to fn.readers.tfrecord(path=..., index_path=...)."""
    storage = open_storage(directory)

    def write(number: int) -> str:
        first, end = index.shard_starts[number : number + 2].tolist()
        sizes = index.lengths[first:end].astype(np.int64) + FRAME_BYTES
        offsets = np.cumsum(sizes) - sizes
        lines = (f"{offset} {size}\n" for offset, size in zip(offsets, sizes, strict=True))
        path = join(directory, f"{entry.shards[number].file}.idx")
        if storage.exists(path) and not storage.read(path).startswith(b"0 "):
            raise OptionError(f"{path} exists and is not an index for DALI. Give another directory, or move the file.")
        with storage.publish(path) as sink:
            sink.write("".join(lines).encode())
        return path

    return in_parallel(write, range(len(entry.shards)))
