"""Records that hold numbers, written as every kind of source keeps them, and opened again as a user would.

The table in record_sources names these. Numbers below 128 make payloads of one length."""

import gzip
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.commands.index import main as index_main
from pipeline.datasets import Mixture, cached, mixture, open_dataset
from pipeline.formats import FixedLength, TextLines
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.sidecars import write_sidecars
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.records import Records
from pipeline.storage.local import LocalStorage

NUMBERS = Schema("numbers", {"number": Feature("int64"), "half": Feature("float32")})
ROW = np.dtype([("half", "<f4"), ("number", "<i4")])
HEADER = b"magic"

WriteDataset = Callable[..., str]


def example(number: int) -> bytes:
    return encode_example(NUMBERS, _record(number))


def line(number: int) -> bytes:
    return b"line %03d" % number


def row(number: int) -> bytes:
    return np.array([(number / 2, number)], ROW).tobytes()


def write_ours(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    """Three shards, the second of them empty."""
    half = len(numbers) // 2
    shards = [[_record(n) for n in part] for part in (numbers[:half], [], numbers[half:])]
    write_dataset(directory, {"train": shards}, NUMBERS)


def write_two(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    third = len(numbers) // 3
    write_ours(directory / "a", numbers[:third], write_dataset)
    write_ours(directory / "b", numbers[third:], write_dataset)


def write_more(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    write_ours(directory, [1000, 1001, *numbers, 1002], write_dataset)


def write_foreign(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    directory.mkdir()
    for i, part in enumerate(_parts(numbers)):
        (directory / f"train.tfrecord-{i:05d}-of-00004").write_bytes(
            b"".join(frame(example(n)) for n in part)
        )


def write_indexed(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    write_foreign(directory, numbers, write_dataset)
    index_main([str(directory)])


def write_gzip(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    write_foreign(directory, numbers, write_dataset)
    for path in directory.iterdir():
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))


def write_tfds(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    """What TFDS leaves: its two files beside the shards, and nothing of ours."""
    write_dataset(
        directory, {"train": [[_record(n) for n in part] for part in _parts(numbers)]}, NUMBERS
    )
    write_sidecars(LocalStorage(), str(directory), read_manifest(str(directory)))
    (directory / "manifest.json").unlink()
    (directory / "_index/train.npy").unlink()


def write_text(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    directory.mkdir()
    for i, part in enumerate(_parts(numbers)):
        (directory / f"{i}.txt").write_bytes(b"".join(line(n) + b"\n" for n in part))


def write_arrays(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    directory.mkdir()
    np.save(directory / "number.npy", np.array(numbers, "<i4"))
    np.save(directory / "half.npy", np.array(numbers, "<f4") / 2)


def write_fixed(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    directory.mkdir()
    for i, part in enumerate(_parts(numbers)):
        (directory / f"{i}.bin").write_bytes(HEADER + b"".join(map(row, part)))


def open_arrays(directory: Path) -> Records:
    # Mapped, so that what is written to the files is written to the arrays.
    return open_dataset(
        {name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("number", "half")}
    )


def open_examples(directory: Path) -> Records:
    return open_dataset(
        ExampleRecords(
            "examples", NUMBERS, map(_record, np.load(directory / "number.npy").tolist())
        )
    )


def open_fixed(directory: Path) -> Records:
    return open_dataset(directory, format=FixedLength(ROW, header_bytes=len(HEADER)))


def open_two(directory: Path) -> Records:
    return open_dataset([directory / "a", directory / "b"])


def open_part(directory: Path) -> Records:
    return open_dataset(directory, "train[2:-1]")


def open_in_ram(directory: Path) -> Records:
    return cached(open_dataset(directory), "ram")


def open_on_disk(directory: Path) -> Records:
    return cached(open_dataset(directory), directory.parent / "cache")


def open_text(directory: Path) -> Records:
    return open_dataset(directory, format=TextLines())


def open_mixture(directory: Path) -> Mixture:
    return mixture([open_dataset(directory / name) for name in ("a", "b")], [1, 3])


def found(payload: Callable[[int], bytes]) -> Callable[[Path, int], tuple[Path, int]]:
    """byte_of where the payload stands in a file as it is."""

    def byte_of(directory: Path, number: int) -> tuple[Path, int]:
        (place,) = [
            (path, at)
            for path in sorted(directory.rglob("*"))
            if path.is_file() and (at := path.read_bytes().find(payload(number))) >= 0
        ]
        return place

    return byte_of


def byte_of_array(directory: Path, number: int) -> tuple[Path, int]:
    path = directory / "number.npy"
    row = np.load(path).tolist().index(number)
    return path, path.stat().st_size - 4 * (len(np.load(path)) - row)


def byte_of_compressed(directory: Path, number: int) -> tuple[Path, int]:
    """In the middle of the file that holds it: what a bit there means, only the stream knows."""
    (path,) = [
        path
        for path in directory.iterdir()
        if example(number) in gzip.decompress(path.read_bytes())
    ]
    return path, path.stat().st_size // 2


def _record(number: int) -> dict[str, float]:
    return {"number": number, "half": number / 2}


def _parts(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Four, the second of them empty if there are few."""
    cuts = [
        0,
        len(numbers) // 5,
        len(numbers) // 5 + len(numbers) // 4,
        len(numbers) // 2,
        len(numbers),
    ]
    return [numbers[first:stop] for first, stop in itertools.pairwise(cuts)]
