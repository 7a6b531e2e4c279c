"""Chooses the validation split from raw data that has no splits.

image_folder and table use it. Needs only the standard library and our errors."""

import hashlib

from pipeline.errors import OptionError

__all__ = ["check_fraction", "is_validation"]

_SPLIT_KEY = b"infeed image_folder validation"


def check_fraction(fraction: float) -> None:
    """Raises OptionError for a --validation_fraction outside [0, 1)."""
    if not 0 <= fraction < 1:
        raise OptionError(f"--validation_fraction={fraction}: must be at least 0 and less than 1.")


def is_validation(place: str, fraction: float) -> bool:
    """Whether a record is in the validation split, decided only by a hash of its place ("<class>/<name>" of a file).

    So adding files moves no others, and a larger fraction includes the files of a smaller one."""
    digest = hashlib.blake2b(place.encode("utf-8", "surrogateescape"), digest_size=8, key=_SPLIT_KEY).digest()
    return int.from_bytes(digest, "big") < fraction * 2**64
