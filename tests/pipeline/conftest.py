"""Small real datasets, written through the shards API."""

import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image

from pipeline.commands.verify import main as verify_main
from pipeline.shards.example import encode_example
from pipeline.shards.frames import crc32c, frame
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
from pipeline.shards.naming import shard_file
from pipeline.shards.schema import Feature, Schema
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import join

# A shared machine is slow at times: examples are bounded by their count.
settings.register_profile("pipeline", deadline=None, max_examples=50)
settings.load_profile("pipeline")

IMAGES = Schema(
    "images",
    {
        "image/encoded": Feature("bytes", content="image"),
        "image/class/label": Feature("int64"),
        "image/weight": Feature("float32", (2,)),
        "image/class/text": Feature("bytes", optional=True),
        "image/object/bbox/xmin": Feature("float32", (None,), optional=True),
    },
)
NUMBERS = Schema("numbers", {"number": Feature("int64"), "half": Feature("float32")})


def jpeg(seed: int, size: tuple[int, int] = (8, 8), mode: str = "L") -> bytes:
    """A small JPEG whose content depends on the seed."""
    depth = {"L": (), "RGB": (3,)}[mode]
    noise = np.random.default_rng(seed).integers(0, 255, (size[0], size[1], *depth), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, "JPEG", quality=95)
    return buffer.getvalue()


def image_record(i: int) -> dict:
    return {"image/encoded": jpeg(i), "image/class/label": 1 + i % 10, "image/weight": [i, i / 2]}


def number_record(i: int) -> dict:
    return {"number": i, "half": i / 2}


@pytest.fixture(scope="session")
def write_dataset() -> Callable[..., str]:
    """write_dataset(directory, {split: [records of shard 0, of shard 1, ...]}, schema) -> directory."""

    def write(
        directory: Path, splits: Mapping[str, Sequence[Sequence[Mapping]]], schema: Schema = IMAGES
    ) -> str:
        storage, entries = LocalStorage(), {}
        for split, shards in splits.items():
            shard_entries, rows = [], []
            for number, records in enumerate(shards):
                payloads = [encode_example(schema, record) for record in records]
                row_list = [(len(payload), crc32c(payload)) for payload in payloads]
                rows.append(np.array(row_list, np.uint32).reshape(-1, 2))
                data = b"".join(map(frame, payloads))
                name = shard_file(split, number, len(shards))
                with storage.publish(join(str(directory), name)) as sink:
                    sink.write(data)
                shard_entries.append(ShardEntry(name, len(records), len(data), crc32c(data)))
            crc = write_index(storage, str(directory), split, sum(map(len, rows)), rows)
            digest = f"{crc:08x}"
            entries[split] = SplitEntry(tuple(shard_entries), crc, digest, digest, seed=0)
        update_manifest(storage, str(directory), lambda _: Manifest(schema.name, schema, entries))
        return str(directory)

    return write


@pytest.fixture
def requested(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """(path, offset, size) of each range that is read from a disk, in the order of the requests."""
    ranges_so_far, read_ranges = [], LocalStorage.read_ranges

    def noting(self, ranges):
        return read_ranges(self, (ranges_so_far.append(each) or each for each in ranges))

    monkeypatch.setattr(LocalStorage, "read_ranges", noting)
    return ranges_so_far


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, list[str]]]:
    """verify(directory, *flags) -> exit code, all that it printed, and the lines of it that name damage."""

    def run(directory: str | Path, *flags: str) -> tuple[int, str, list[str]]:
        status = verify_main([str(directory), *flags])
        printed = capsys.readouterr().out
        return (
            status,
            printed,
            [line for line in printed.splitlines() if line.startswith("damaged: ")],
        )

    return run


def cut(records: Sequence[dict], sizes: Sequence[int]) -> list[list[dict]]:
    """Records cut into shards of these sizes."""
    ends = np.cumsum(sizes)
    return [list(records[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


@pytest.fixture(scope="session")
def numbers_of(
    write_dataset: Callable, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., str]:
    """numbers_of(5, 0, 3): a dataset of 8 tiny records in shards of 5, 0 and 3; record i holds number i."""
    written: dict[tuple[int, ...], str] = {}

    def get(*sizes: int) -> str:
        if sizes not in written:
            shards = cut([number_record(i) for i in range(sum(sizes))], sizes)
            splits = {"train": shards, "validation": shards}
            written[sizes] = write_dataset(tmp_path_factory.mktemp("numbers"), splits, NUMBERS)
        return written[sizes]

    return get


@pytest.fixture(scope="session")
def images(write_dataset: Callable, tmp_path_factory: pytest.TempPathFactory) -> str:
    """40 grey 8x8 JPEGs in train shards of 17, 0, 23; the first 21 of them in validation shards of 8 and 13."""
    records = [image_record(i) for i in range(40)]
    splits = {"train": cut(records, (17, 0, 23)), "validation": cut(records[:21], (8, 13))}
    return write_dataset(tmp_path_factory.mktemp("images"), splits)


@pytest.fixture(scope="session")
def written(
    tmp_path_factory: pytest.TempPathFactory, write_dataset: Callable
) -> Callable[..., Path]:
    """written(source) -> where its records 0..36 are; written(source, "others"): other records of the same sizes."""
    places: dict[tuple[str, str], Path] = {}

    def get(source: Any, numbers: str = "these") -> Path:  # a row of record_sources
        if (source.name, numbers) not in places:
            directory = places[source.name, numbers] = tmp_path_factory.mktemp("source") / "data"
            source.write(
                directory, range(37) if numbers == "these" else range(37)[::-1], write_dataset
            )
        return places[source.name, numbers]

    return get
