"""Which splits raw data has, and which of its records belong to each.

Splits are named by files and folders, or shares of all records, chosen by a hash, are held out."""

import argparse
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from beam_jobs.references import encoded
from converters.raw.files import first_few
from pipeline.checks import check_number
from pipeline.errors import OptionError, RawDataError
from pipeline.sources.named_splits import SPLIT_NAMES

SPLITS = ("train", "validation", "test")
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})[-_./].*", re.DOTALL | re.I | re.ASCII)
_SPLIT_KEY = b"infeed image_folder validation"


def chosen(raw_data_dir: str, splits: Sequence[str], existing: Collection[str]) -> Sequence[str]:
    """The splits to convert: those of --splits, or all existing ones. Raises RawDataError if one
    does not exist."""
    for split in splits:
        if split not in existing:
            raise RawDataError(
                f"{raw_data_dir} does not have the {split} split. It has: {', '.join(existing)}."
            )
    return [split for split in existing if split in splits or not splits]


def by_split(
    raw_data_dir: str, names: Sequence[str], held_out: "HeldOut | None", examples: str
) -> Mapping[str, Sequence[str]]:
    """The names of files by split, in the order of SPLITS. Raises RawDataError if none names a
    split.

    held_out: None if the names state the split. examples: for the error."""
    if held_out is not None:
        return dict.fromkeys(held_out.splits, names)
    files: dict[str, list[str]] = {}
    words = dict[str, str]()
    for match in filter(None, map(_SPLIT.fullmatch, names)):
        word = match[1].lower()
        split = SPLIT_NAMES[word]
        if words.setdefault(split, word) != word:
            raise RawDataError(
                f"{raw_data_dir} has {files[split][0]} and {match[0]}, which both name the split "
                f"{split}. Rename or remove one."
            )
        files.setdefault(split, []).append(match[0])
    if not files:
        raise RawDataError(
            f"{raw_data_dir} has no {examples}. It has: {first_few(names)}. If these are not split "
            "yet, give --validation-fraction (0 for train only)."
        )
    return {split: files[split] for split in SPLITS if split in files}


class HeldOut(NamedTuple):
    """The shares of all records that become the splits validation and test, decided only by a hash
    of a record's place ("<class>/<name>" of a file), key or content. So adding records moves no
    others, and a larger share has the records of a smaller one."""

    validation: float
    test: float = 0.0

    @property
    def splits(self) -> Sequence[str]:
        """The splits that get records."""
        return [split for split in SPLITS if getattr(self, split, True)]

    def split_of(self, place: str) -> str:
        """The split to which the record belongs."""
        digest = hashlib.blake2b(encoded(place), digest_size=8, key=_SPLIT_KEY).digest()
        number = int.from_bytes(digest, "big")
        if number < self.validation * 2**64:
            return "validation"
        return "test" if number < sum(self) * 2**64 else "train"


def held_out_of(args: argparse.Namespace) -> HeldOut | None:
    """The shares that the options ask for; None if the raw data has splits. Raises OptionError."""
    fractions = args.validation_fraction, args.test_fraction
    for split, fraction in zip(SPLITS[1:], fractions, strict=True):
        check_number(f"--{split}-fraction", fraction, at_least=0, below=1)
    if fractions == (None, None):
        return None
    shares = HeldOut(*(fraction or 0.0 for fraction in fractions))
    if sum(shares) >= 1:
        raise OptionError(
            f"--validation-fraction and --test-fraction are {sum(shares):g} together: nothing is "
            "left."
        )
    return shares


def is_of(split: str, place: str, held_out: HeldOut | None) -> bool:
    """Whether a record is in the split. held_out: None if each split has its own raw data."""
    return held_out is None or held_out.split_of(place) == split
