"""Which splits raw data has, first checks of --raw-data-dir, and error texts that the searches for raw data share.

Splits are named by files and folders, or a fraction of all records, chosen by a hash, is for validation."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from pipeline.errors import RawDataError, check_number
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
    raw_data_dir: str, names: Sequence[str], fraction: float | None, *, name: re.Pattern[str], wanted: str
) -> Mapping[str, Sequence[str]]:
    """The names of files by split, in the order of SPLITS. Raises RawDataError if none names a split, OptionError.

    fraction: None if the names state the split, in the first group of the pattern. wanted: examples, for the error."""
    if fraction is not None:
        check_fraction(fraction)
        return {"train": names, "validation": names} if fraction else {"train": names}
    found: dict[str, list[str]] = {}
    for match in filter(None, map(name.fullmatch, names)):
        found.setdefault("validation" if match[1] == "val" else match[1], []).append(match[0])
    if not found:
        raise RawDataError(
            f"{raw_data_dir} has no {wanted}. It has: {first_few(names)}. If these are not split yet, give "
            "--validation-fraction (0 for train only)."
        )
    return {split: found[split] for split in SPLITS if split in found}


def check_fraction(fraction: float) -> None:
    """Raises OptionError for a --validation-fraction outside [0, 1)."""
    check_number("--validation-fraction", fraction, at_least=0, below=1)


def is_of(split: str, place: str, fraction: float | None) -> bool:
    """Whether a record is in the split. fraction: for validation; None if each split has its own raw data."""
    return fraction is None or is_validation(place, fraction) == (split == "validation")


def is_validation(place: str, fraction: float) -> bool:
    """Whether a record is in the validation split, decided only by a hash of its place ("<class>/<name>" of a file).

    So adding files moves no others, and a larger fraction includes the files of a smaller one."""
    digest = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8, key=_SPLIT_KEY).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
