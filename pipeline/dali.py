"""Index files for NVIDIA DALI's TFRecord reader, as its tfrecord2idx writes them: a line `offset size` a record.

Made from the index: no shard is read. They stand in a directory of their own, because readers that go by names would
take train-00000-of-00015.idx for a shard."""

from pipeline.shards.index import SplitIndex
from pipeline.shards.manifest import SplitEntry
from pipeline.shards.record import FRAME_BYTES
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import in_parallel, join

__all__ = ["DALI_DIRECTORY", "write_dali_index"]

DALI_DIRECTORY = "_dali"


def write_dali_index(directory: str, entry: SplitEntry, index: SplitIndex) -> list[str]:
    """Publishes <directory>/<shard>.idx for each shard; their paths, in the order of the shards.

    Give both lists to fn.readers.tfrecord(path=..., index_path=...)."""
    storage = open_storage(directory)

    def write(number: int) -> str:
        first, end = index.shard_starts[number : number + 2].tolist()
        offset, lines = 0, []
        for length in index.lengths[first:end].tolist():
            lines.append(f"{offset} {length + FRAME_BYTES}\n")
            offset += length + FRAME_BYTES
        path = join(directory, f"{entry.shards[number].file}.idx")
        with storage.publish(path) as sink:
            sink.write("".join(lines).encode())
        return path

    return in_parallel(write, range(len(entry.shards)))
