"""Records of noise, 110 KB in the mean as ImageNet's photos are, in the formats that bench_reading compares.

    python -m benchmarks.reading_data FORMAT DIR RECORDS [SHARD_BYTES]

All formats hold the same images and labels in the same order, uncompressed, in shards of about 100 MB by default. Each writer
imports what it needs: a peer's runs in the peer's interpreter."""

import io
import itertools
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["FORMATS", "MEAN_BYTES", "write"]

MEAN_BYTES, SHARD_BYTES, CLASSES = 110_000, 100 * 10**6, 1000


def _shards(records: int, shard_bytes: int) -> Iterator[list[tuple[bytes, int]]]:
    """The images and labels of each shard. Sizes are spread as photos' are: from 40 to 300 KB, mostly."""
    random, most = np.random.default_rng(0), shard_bytes // MEAN_BYTES
    for begin in range(0, records, most):
        count = min(most, records - begin)
        sizes = (MEAN_BYTES * random.lognormal(-0.08, 0.4, count)).astype(int)
        yield [(random.bytes(size), int(random.integers(CLASSES))) for size in sizes.tolist()]


def _tfrecord(directory: Path, records: int, shard_bytes: int) -> None:
    from benchmarks.harness import write_tfrecords
    from pipeline.shards.schema import Feature

    images = (
        {"image/encoded": image, "label": label}
        for shard in _shards(records, shard_bytes)
        for image, label in shard
    )
    features = {"image/encoded": Feature("bytes"), "label": Feature("int64")}
    write_tfrecords(directory, features, images, per_file=shard_bytes // MEAN_BYTES)


def _array_record(directory: Path, records: int, shard_bytes: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for number, images in enumerate(_shards(records, shard_bytes)):
        # A record a chunk, as grain asks for; noise does not get smaller, so to compress it would only cost.
        writer = ArrayRecordWriter(
            str(directory / f"train-{number:05d}.array_record"), "group_size:1,uncompressed"
        )
        for image, label in images:
            writer.write(label.to_bytes(4, "little") + image)
        writer.close()


def _webdataset(directory: Path, records: int, shard_bytes: int) -> None:
    for number, images in enumerate(_shards(records, shard_bytes)):
        with tarfile.open(
            directory / f"train-{number:05d}.tar", "w", format=tarfile.USTAR_FORMAT
        ) as tar:
            for i, (image, label) in enumerate(images):
                for suffix, data in (("jpg", image), ("cls", str(label).encode())):
                    info = tarfile.TarInfo(f"{number:05d}{i:05d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def _mds(directory: Path, records: int, shard_bytes: int) -> None:
    from streaming import MDSWriter

    directory.rmdir()  # it wants to make it
    with MDSWriter(
        out=str(directory), columns={"image": "bytes", "label": "int"}, size_limit=shard_bytes
    ) as writer:
        for images in _shards(records, shard_bytes):
            for image, label in images:
                writer.write({"image": image, "label": label})


def _litdata(directory: Path, records: int, shard_bytes: int) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(directory), chunk_bytes=shard_bytes)
    numbers = itertools.count()
    for images in _shards(records, shard_bytes):
        for image, label in images:
            writer.add_item(next(numbers), {"image": image, "label": label})
    writer.done()
    writer.merge(1)


FORMATS = {
    "tfrecord": _tfrecord,
    "array_record": _array_record,
    "webdataset": _webdataset,
    "mds": _mds,
    "litdata": _litdata,
}


def write(name: str, directory: Path, records: int, shard_bytes: int = SHARD_BYTES) -> None:
    """Writes the records in one format."""
    directory.mkdir(parents=True)
    FORMATS[name](directory, records, shard_bytes)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
