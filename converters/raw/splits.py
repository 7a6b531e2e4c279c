"""Which splits raw data has, and which of its records belong to each.

Splits are named by files and folders, or shares of all records, chosen by a hash, are held out."""

import argparse
import hashlib
import posixpath
import re
from array import array
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.rows.references import encoded
from converters.raw.files import first_few
from pipeline.checks import check_number
from pipeline.errors import OptionError, RawDataError
from pipeline.sources.named_splits import SPLIT_NAMES

SPLITS = ("train", "validation", "test")
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})[-_./].*", re.DOTALL | re.I | re.ASCII)
WORDS = ("name", "content", "folder")  # that --split-by may be
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
    of what belongs together: of a record's place ("<class>/<name>" of a file), key, content or
    whatever --split-by names. So adding records moves no others, and a larger share has the records
    of a smaller one. With strata, adding records may move some.

    by: --split-by; "" is the converter's default.
    strata: by class, below which hashes are validation, and validation or test.
    several: the split of each hash that occurs in several classes."""

    validation: float
    test: float = 0.0
    by: str = ""
    strata: Mapping[str, tuple[int, int]] = {}
    several: Mapping[int, str] = {}

    @property
    def splits(self) -> Sequence[str]:
        """The splits that get records."""
        return [split for split in SPLITS if getattr(self, split, True)]

    @property
    def stated(self) -> Sequence[Any]:
        """For plan digests, in which those of before have the two shares."""
        return [*self[:2], *filter(None, self[2:])]

    @property
    def column(self) -> str | None:
        """The column that --split-by names, if it does."""
        return None if "(" in self.by or self.by in ("", *WORDS) else self.by

    def group_of(self, name: str) -> str:
        """What decides the split of a record with this name, if its name does. Raises RawDataError
        where --split-by is a pattern that does not match."""
        if self.by == "folder":
            return posixpath.dirname(name)
        if "(" not in self.by:
            return name
        match = re.search(self.by, name)
        if not match or match[1] is None:
            raise RawDataError(
                f"--split-by={self.by} finds nothing in {name!r}. It must match every name, and "
                "what its parentheses match belongs together."
            )
        return match[1]

    def split_of(self, group: str, stratum: str = "") -> str:
        """The split to which the records of a group belong. stratum: their class."""
        number = _hash(group)
        return self.several.get(number) or self.split_of_hash(number, stratum)

    def split_of_hash(self, number: int, stratum: str) -> str:
        """The split by a group's hash, where it has records of one class only."""
        shares = self.validation * 2**64, sum(self[:2]) * 2**64
        validation, test = self.strata.get(stratum, shares)
        return "validation" if number < validation else "test" if number < test else "train"

    def stratified(self, groups: Iterable[tuple[str, str]]) -> "HeldOut":
        """The same shares of each class: its lowest hashes. groups: (class, group) of each record,
        of which 8 bytes are kept.

        A group with several classes counts for the first of them."""
        hashes = defaultdict[str, Any](lambda: array("Q"))
        for stratum, group in groups:
            hashes[stratum].append(_hash(group))
        names = sorted(hashes)
        each = [np.unique(np.array(hashes[stratum], np.uint64)) for stratum in names]
        ends = np.cumsum([len(numbers) for numbers in each])
        numbers, first, times = np.unique(
            np.concatenate(each), return_index=True, return_counts=True
        )
        owner = np.searchsorted(ends, first, side="right")
        strata = dict[str, tuple[int, int]]()
        for place, stratum in enumerate(names):
            own = numbers[owner == place]
            cuts = (round(share * len(own)) for share in (self.validation, sum(self[:2])))
            validation, test = (int(own[cut]) if cut < len(own) else 2**64 for cut in cuts)
            strata[stratum] = validation, test
        shares = self._replace(strata=strata)
        shared = zip(numbers[times > 1].tolist(), owner[times > 1], strict=True)
        return shares._replace(
            several={number: shares.split_of_hash(number, names[place]) for number, place in shared}
        )


def _hash(group: str) -> int:
    digest = hashlib.blake2b(encoded(group), digest_size=8, key=_SPLIT_KEY).digest()
    return int.from_bytes(digest, "big")


def held_out_of(args: argparse.Namespace, *, columns: bool = False) -> HeldOut | None:
    """The shares that the options ask for; None if the raw data has splits. Raises OptionError.

    columns: whether --split-by may name one."""
    fractions = args.validation_fraction, args.test_fraction
    for split, fraction in zip(SPLITS[1:], fractions, strict=True):
        check_number(f"--{split}-fraction", fraction, at_least=0, below=1)
    by = getattr(args, "split_by", "")
    if fractions == (None, None):
        if by or getattr(args, "stratify", False):
            raise OptionError(
                "--split-by and --stratify: give the --validation-fraction or --test-fraction that "
                "they are for."
            )
        return None
    if "(" in by:
        _check_pattern(by)
    elif by and by not in WORDS and not columns:
        raise OptionError(
            f"--split-by={by}: must be {', '.join(WORDS)}, or a pattern with parentheses "
            r"around what belongs together, such as '(patient\d+)'."
        )
    validation, test = (fraction or 0.0 for fraction in fractions)
    if validation + test >= 1:
        raise OptionError(
            f"--validation-fraction and --test-fraction are {validation + test:g} together: "
            "nothing is left."
        )
    return HeldOut(validation, test, by)


def _check_pattern(by: str) -> None:
    try:
        groups = re.compile(by).groups
    except re.error as e:
        raise OptionError(f"--split-by={by} is not a valid regular expression: {e}.") from None
    if groups != 1:
        raise OptionError(
            f"--split-by={by}: has {groups} pairs of parentheses. It must have one, around what "
            "belongs together."
        )


def is_of(split: str, group: str, held_out: HeldOut | None, stratum: str = "") -> bool:
    """Whether a record is in the split. held_out: None if each split has its own raw data."""
    return held_out is None or held_out.split_of(group, stratum) == split
