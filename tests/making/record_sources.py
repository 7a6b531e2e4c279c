"""Every kind of source that open_dataset and mixture know, a row each: how one is written, and what it cannot do.

A new kind of source is a new row. Records hold the numbers that they are written with."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pipeline.datasets import Mixture, mixture, open_dataset
from pipeline.formats import FixedLength
from pipeline.index import main as index_main
from pipeline.records import Records
from pipeline.shards.example import encode_example
from pipeline.shards.record import frame
from pipeline.shards.schema import Feature, Schema

NUMBERS = Schema("numbers", {"number": Feature("int64"), "half": Feature("float32")})
ROW = np.dtype([("half", "<f4"), ("number", "<i4")])
HEADER = b"magic"

WriteDataset = Callable[..., str]

# What a source may be unable to do; its row says why.
ABILITIES = {
    "evaluation": "one exact epoch (E1-E7, E9, E14, E16)",
    "epochs": "training in exact epochs",
    "proof": "saying beforehand what the checksums of an evaluation add up to (E17)",
    "damage": "naming a record of which a bit has changed (E11)",
    "truncation": "refusing, when it is opened, what was truncated (E10)",
    "replacement": "telling other data of the same sizes by the fingerprint",
}


@dataclass(frozen=True)
class Source:
    """One kind. write(directory, numbers, write_dataset): records of these numbers; open(directory): as a user would.

    payload: of the record that holds a number. byte_of(directory, number): a file, and a byte in it that belongs to
    that record's payload. cannot: ability -> why not."""

    name: str
    write: Callable[[Path, Sequence[int], WriteDataset], object]
    open: Callable[[Path], Records | Mixture]
    payload: Callable[[int], bytes]
    byte_of: Callable[[Path, int], tuple[Path, int]]
    cannot: Mapping[str, str] = field(default_factory=dict)

    def records(self, directory: Path) -> Records:
        """All that can be drawn from it."""
        data = self.open(directory)
        return data.records if isinstance(data, Mixture) else data

    @property
    def evaluates(self) -> bool:
        """Whether it has an exact epoch."""
        return "evaluation" not in self.cannot


def example(number: int) -> bytes:
    return encode_example(NUMBERS, _record(number))


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
        (directory / f"train.tfrecord-{i:05d}-of-00004").write_bytes(b"".join(frame(example(n)) for n in part))


def write_indexed(directory: Path, numbers: Sequence[int], write_dataset: WriteDataset) -> None:
    write_foreign(directory, numbers, write_dataset)
    index_main([str(directory)])


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
    return open_dataset({name: np.load(directory / f"{name}.npy", mmap_mode="r") for name in ("number", "half")})


def open_fixed(directory: Path) -> Records:
    return open_dataset(directory, format=FixedLength(ROW, header_bytes=len(HEADER)))


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


def _record(number: int) -> dict[str, float]:
    return {"number": number, "half": number / 2}


def _parts(numbers: Sequence[int]) -> list[Sequence[int]]:
    """Four, the second of them empty if there are few."""
    cuts = [0, len(numbers) // 5, len(numbers) // 5 + len(numbers) // 4, len(numbers) // 2, len(numbers)]
    return [numbers[first:stop] for first, stop in itertools.pairwise(cuts)]


NO_CHECKSUMS = "nothing in the files says which bytes are due"

SOURCES = [
    Source("our dataset", write_ours, open_dataset, example, found(example)),
    Source(
        "two of ours as one",
        write_two,
        lambda directory: open_dataset([directory / "a", directory / "b"]),
        example,
        found(example),
    ),
    Source(
        "a part of a split",
        write_more,
        lambda directory: open_dataset(directory, "train[2:-1]"),
        example,
        found(example),
    ),
    Source("TFRecords with an index", write_indexed, open_dataset, example, found(example)),
    Source(
        "arrays",
        write_arrays,
        open_arrays,
        row,
        byte_of_array,
        {"truncation": "there is no file; arrays of unequal lengths are refused"},
    ),
    Source(
        "records of fixed length",
        write_fixed,
        open_fixed,
        row,
        found(row),
        {
            "proof": NO_CHECKSUMS,
            "damage": NO_CHECKSUMS,
            "replacement": "a disk keeps no checksums, and to compute them would mean to read everything",
        },
    ),
    Source(
        "a mixture",
        write_two,
        open_mixture,
        example,
        found(example),
        {
            "evaluation": "it has no end; its sources can be evaluated as one",
            "epochs": "each source goes round at its own pace",
            "proof": "without an evaluation there is nothing to prove",
        },
    ),
]
