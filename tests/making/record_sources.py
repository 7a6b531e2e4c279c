"""Every kind of source that open_dataset and mixture know, a row each: how one is written, and what it cannot do.

A new kind of source is a new row. Records hold the numbers that they are written with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import written_sources as how
from written_sources import example, line, row

from pipeline.datasets import Mixture, open_dataset
from pipeline.sources.records import Records

# What a source may be unable to do; its row says why.
ABILITIES = {
    "features": "giving numbers without an op",
    "evaluation": "one exact epoch (E1-E7, E9, E14, E16)",
    "epochs": "training in exact epochs",
    "proof": "saying beforehand what the checksums of an evaluation add up to (E17)",
    "change": "having a bit changed while it is open",
    "damage": "naming a record of which a bit has changed (E11)",
    "survival": "reading on behind such a record",
    "files": "being cut short where it is kept",
    "truncation": "refusing that when it is opened (E10)",
    "replacement": "telling other data of the same sizes by the fingerprint",
}


@dataclass(frozen=True)
class Source:
    """One kind. write(directory, numbers, write_dataset): records of these numbers; open(directory): as a user would.

    payload: of the record that holds a number. byte_of(directory, number): a file, and a byte in it that belongs to
    that record's payload. cannot: ability -> why not."""

    name: str
    write: Callable[[Path, Sequence[int], how.WriteDataset], object]
    open: Callable[[Path], Records | Mixture]
    payload: Callable[[int], bytes]
    byte_of: Callable[[Path, int], tuple[Path, int]]
    cannot: Mapping[str, str] = field(default_factory=dict)

    def records(self, directory: Path) -> Records:
        """All that can be drawn from it."""
        data = self.open(directory)
        return data.records if isinstance(data, Mixture) else data

    def flip(self, directory: Path, number: int) -> Path:
        """Changes one bit of a record; the file that it is in."""
        path, byte = self.byte_of(directory, number)
        data = bytearray(path.read_bytes())
        data[byte] ^= 1
        with path.open("r+b") as file:  # the same file: it may be mapped
            file.write(data)
        return path

    @property
    def evaluates(self) -> bool:
        """Whether it has an exact epoch."""
        return "evaluation" not in self.cannot


NO_CHECKSUMS = "nothing in the files says which bytes are due"
NO_INDEX = "the files prove their records one by one, but nothing says which of them are due"
SIZES_ONLY = "a disk keeps no checksums, and to compute them would mean to read everything"

SOURCES = [
    Source("our dataset", how.write_ours, open_dataset, example, how.found(example)),
    Source("two of ours as one", how.write_two, how.open_two, example, how.found(example)),
    Source("a part of a split", how.write_more, how.open_part, example, how.found(example)),
    Source("our dataset, kept in RAM", how.write_ours, how.open_in_ram, example, how.found(example)),
    Source("our dataset, kept on a disk", how.write_ours, how.open_on_disk, example, how.found(example)),
    Source("TFRecords with an index", how.write_indexed, open_dataset, example, how.found(example)),
    Source(
        "arrays",
        how.write_arrays,
        how.open_arrays,
        row,
        how.byte_of_array,
        {"files": "arrays are in memory; those of unequal lengths are refused"},
    ),
    Source(
        "examples in memory",
        how.write_arrays,
        how.open_examples,
        example,
        how.byte_of_array,
        {"change": "they are in memory, and bytes do not change", "files": "they are in memory"},
    ),
    Source(
        "records of fixed length",
        how.write_fixed,
        how.open_fixed,
        row,
        how.found(row),
        {"proof": NO_CHECKSUMS, "damage": NO_CHECKSUMS, "replacement": SIZES_ONLY},
    ),
    Source(
        "TFRecords without an index",
        how.write_foreign,
        open_dataset,
        example,
        how.found(example),
        {"proof": NO_INDEX, "replacement": SIZES_ONLY},
    ),
    Source(
        "compressed TFRecords",
        how.write_gzip,
        open_dataset,
        example,
        how.byte_of_compressed,
        {
            "proof": NO_INDEX,
            "survival": "what follows in a compressed file is lost, so reading ends with an error that names it",
            "replacement": SIZES_ONLY,
        },
    ),
    Source(
        "what TFDS prepared",
        how.write_tfds,
        open_dataset,
        example,
        how.found(example),
        {
            "proof": NO_INDEX,
            "truncation": "TFDS says how many records there are, so nothing is counted; reading ends with an error",
            "replacement": SIZES_ONLY,
        },
    ),
    Source(
        "lines of text",
        how.write_text,
        how.open_text,
        line,
        how.found(line),
        {
            "features": "a line is bytes, of which an op can make numbers",
            "proof": NO_CHECKSUMS,
            "damage": NO_CHECKSUMS,
            "truncation": "any text is lines, and its fingerprint is another",
            "replacement": SIZES_ONLY,
        },
    ),
    Source(
        "a mixture",
        how.write_two,
        how.open_mixture,
        example,
        how.found(example),
        {
            "evaluation": "it has no end; its sources can be evaluated as one",
            "epochs": "each source goes round at its own pace",
            "proof": "without an evaluation there is nothing to prove",
        },
    ),
]  # fmt: skip
