"""Which splits raw data has, first checks of --raw-data-dir, and error texts that the searches for raw data share.

Splits are named by files and folders, or shares of all records, chosen by a hash, are held out."""

import argparse
import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.checks import check_number
from pipeline.errors import OptionError, RawDataError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage

SPLITS = ("train", "validation", "test")
_SPLIT_KEY = b"infeed image_folder validation"


def open_raw_data(raw_data_dir: str) -> Storage:
    """The storage of the raw data. Raises RawDataError if the path does not exist."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw-data-dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    return storage


def first_few(names: Iterable[str]) -> str:
    """Up to 8 names, for errors that list what was found instead."""
    return ", ".join(list(names)[:8]) or "nothing"


def is_hidden(name: str) -> bool:
    """Whether to ignore a file or folder: hidden ones, and what macOS and Windows add to zips and folders."""
    return name.startswith(".") or name in ("__MACOSX", "Thumbs.db", "desktop.ini")


def chosen(raw_data_dir: str, splits: Sequence[str], found: Collection[str]) -> Sequence[str]:
    """The splits to convert: those of --splits, or all that were found. Raises RawDataError if one was not found."""
    for split in splits:
        if split not in found:
            raise RawDataError(f"{raw_data_dir} does not have the {split} split. It has: {', '.join(found)}.")
    return [split for split in found if split in splits or not splits]


def by_split(
    raw_data_dir: str, names: Sequence[str], held_out: "HeldOut | None", *, name: re.Pattern[str], wanted: str
) -> Mapping[str, Sequence[str]]:
    """The names of files by split, in the order of SPLITS. Raises RawDataError if none names a split.

    held_out: None if the names state the split, in the first group of the pattern. wanted: examples, for the error."""
    if held_out is not None:
        return dict.fromkeys(held_out.splits, names)
    found: dict[str, list[str]] = {}
    for match in filter(None, map(name.fullmatch, names)):
        found.setdefault("validation" if match[1] == "val" else match[1], []).append(match[0])
    if not found:
        raise RawDataError(
            f"{raw_data_dir} has no {wanted}. It has: {first_few(names)}. If these are not split yet, give "
            "--validation-fraction (0 for train only)."
        )
    return {split: found[split] for split in SPLITS if split in found}


class HeldOut(NamedTuple):
    """The shares of all records that become the splits validation and test, decided only by a hash of a record's place
    ("<class>/<name>" of a file). So adding files moves no others, and a larger share has the files of a smaller one."""

    validation: float
    test: float = 0.0

    @property
    def splits(self) -> Sequence[str]:
        """Those that get records."""
        return [split for split in SPLITS if getattr(self, split, True)]

    def split_of(self, place: str) -> str:
        """Where the record belongs."""
        digest = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8, key=_SPLIT_KEY).digest()
        number = int.from_bytes(digest, "big")
        if number < self.validation * 2**64:
            return "validation"
        return "test" if number < sum(self) * 2**64 else "train"


def held_out_of(args: argparse.Namespace) -> HeldOut | None:
    """The shares that the options ask for; None if the raw data has splits. Raises OptionError."""
    given = args.validation_fraction, args.test_fraction
    for option, fraction in zip(("--validation-fraction", "--test-fraction"), given, strict=True):
        check_number(option, fraction, at_least=0, below=1)
    if given == (None, None):
        return None
    shares = HeldOut(*(fraction or 0.0 for fraction in given))
    if sum(shares) >= 1:
        raise OptionError(f"--validation-fraction and --test-fraction are {sum(shares):g} together: nothing is left.")
    return shares


def is_of(split: str, place: str, held_out: HeldOut | None) -> bool:
    """Whether a record is in the split. held_out: None if each split has its own raw data."""
    return held_out is None or held_out.split_of(place) == split
