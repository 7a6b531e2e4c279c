"""Parses and formats sizes in bytes: 100MB is 10^8 bytes, 100MiB is 100 * 2^20."""

import re

from pipeline.errors import OptionError

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KiB, MiB = 2**10, 2**20

_UNITS = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
_UNITS |= {"KIB": KiB, "MIB": MiB, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str | int) -> int:
    """The number of bytes in "100MB", "1.5 GiB", "4096" or 4096. Raises OptionError, also below one byte."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = match and _UNITS.get(match[2].upper())
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise OptionError(
            f"{text!r} is not a size in bytes. Write a number and a unit: 500KB, 100MB, 1.5GB (powers of ten) "
            "or 100MiB (powers of two)."
        )
    return size


def format_bytes(size: float) -> str:
    """Three significant digits and a decimal unit: 1.23 MB."""
    for unit, factor in (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}" if size < 999.5 * factor else f"{size / factor:.0f} {unit}"
    return f"{size:.0f} B"
