"""Records of noise, 110 KB in the mean as ImageNet's photos are, in the formats that bench_reading compares.

    python -m benchmarks.reading_data FORMAT DIR RECORDS

All formats hold the same images and labels in the same order, uncompressed, in shards of about 100 MB. Each writer
imports what it needs: a peer's runs in the peer's interpreter."""

import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

__all__ = ["FORMATS", "MEAN_BYTES", "write"]

MEAN_BYTES, SHARD_BYTES, CLASSES = 110_000, 100 * 10**6, 1000
_SHARD_RECORDS = SHARD_BYTES // MEAN_BYTES


def _shards(records: int) -> Iterator[list[tuple[bytes, int]]]:
    """The images and labels of each shard. Sizes are spread as photos' are: from 40 to 300 KB, mostly."""
    random = np.random.default_rng(0)
    for begin in range(0, records, _SHARD_RECORDS):
        count = min(_SHARD_RECORDS, records - begin)
        sizes = (MEAN_BYTES * random.lognormal(-0.08, 0.4, count)).astype(int)
        yield [(random.bytes(size), int(random.integers(CLASSES))) for size in sizes.tolist()]


def _tfrecord(directory: Path, records: int) -> None:
    from benchmarks.harness import write_tfrecords
    from pipeline.shards.schema import Feature

    images = (
        {"image/encoded": image, "label": label}
        for shard in _shards(records)
        for image, label in shard
    )
    features = {"image/encoded": Feature("bytes"), "label": Feature("int64")}
    write_tfrecords(directory, features, images, per_file=_SHARD_RECORDS)


def _array_record(directory: Path, records: int) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for number, images in enumerate(_shards(records)):
        # A record a chunk, as grain asks for; noise does not get smaller, so to compress it would only cost.
        writer = ArrayRecordWriter(
            str(directory / f"train-{number:05d}.array_record"), "group_size:1,uncompressed"
        )
        for image, label in images:
            writer.write(label.to_bytes(4, "little") + image)
        writer.close()


def _webdataset(directory: Path, records: int) -> None:
    for number, images in enumerate(_shards(records)):
        with tarfile.open(
            directory / f"train-{number:05d}.tar", "w", format=tarfile.USTAR_FORMAT
        ) as tar:
            for i, (image, label) in enumerate(images):
                for suffix, data in (("jpg", image), ("cls", str(label).encode())):
                    info = tarfile.TarInfo(f"{number:05d}{i:05d}.{suffix}")
                    info.size = len(data)
                    tar.addfile(info, io.BytesIO(data))


def _mds(directory: Path, records: int) -> None:
    from streaming import MDSWriter

    directory.rmdir()  # it wants to make it
    with MDSWriter(
        out=str(directory), columns={"image": "bytes", "label": "int"}, size_limit=SHARD_BYTES
    ) as writer:
        for images in _shards(records):
            for image, label in images:
                writer.write({"image": image, "label": label})


FORMATS = {
    "tfrecord": _tfrecord,
    "array_record": _array_record,
    "webdataset": _webdataset,
    "mds": _mds,
}


def write(name: str, directory: Path, records: int) -> None:
    """Writes the records in one format."""
    directory.mkdir(parents=True)
    FORMATS[name](directory, records)


if __name__ == "__main__":
    write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
