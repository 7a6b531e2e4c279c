"""First checks of --raw_data_dir, and error texts that the searches for raw data share."""

from collections.abc import Collection, Iterable, Sequence

from pipeline.errors import RawDataError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage

__all__ = ["check_splits", "first_few", "open_raw_data"]


def open_raw_data(raw_data_dir: str) -> Storage:
    """The storage of the raw data. Raises RawDataError if the path does not exist."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    return storage


def check_splits(raw_data_dir: str, splits: Sequence[str], found: Collection[str]) -> None:
    """Raises RawDataError if a chosen split was not found."""
    for split in splits:
        if split not in found:
            raise RawDataError(f"{raw_data_dir} does not have the {split} split. It has: {', '.join(found)}.")


def first_few(names: Iterable[str]) -> str:
    """Up to 8 names, for errors that list what was found instead."""
    return ", ".join(list(names)[:8]) or "nothing"
