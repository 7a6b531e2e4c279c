"""Sizes and other numbers as people write them: parsed (100MB is 10^8 bytes, 100MiB is
100 * 2^20) and formatted."""

import math
import re

from pipeline.errors import OptionError

KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
KiB = 2**10
MiB = 2**20

_UNITS = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
_UNITS |= {"KIB": KiB, "MIB": MiB, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str | int) -> int:
    """The number of bytes in "100MB", "1.5 GiB", "4096" or 4096. Raises OptionError, also below one
    byte."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", str(text))
    unit = match and _UNITS.get(match[2].upper())
    size = int(float(match[1]) * unit) if match and unit else 0
    if size < 1:
        raise OptionError(
            f"{text!r} is not a size in bytes. Write a number and a unit: 500KB, 100MB, 1.5GB "
            "(powers of ten) or 100MiB (powers of two)."
        )
    return size


def format_bytes(size: float) -> str:
    """Three significant digits and a decimal unit: 1.23 MB."""
    for unit, factor in (("TB", TB), ("GB", GB), ("MB", MB), ("KB", KB)):
        if size >= factor:
            digits = ".3g" if size < 999.5 * factor else ".0f"
            return f"{size / factor:{digits}} {unit}"
    return f"{size:.0f} B"


def format_number(value: float) -> str:
    """The number as people write it: 72,000, 11.6, 0.0000093; of a fraction three significant
    digits, below 0.001 two."""
    if isinstance(value, int) or 100 <= abs(value) < 1e12:
        return f"{value:,.0f}"
    digits = 3 if abs(value) >= 0.001 else 2
    if not 1e-7 <= abs(value) < 100:  # also 0 and NaN
        return f"{value:.{digits}g}"
    text = f"{value:.{digits - 1 - math.floor(math.log10(abs(value)))}f}"
    return text.rstrip("0").rstrip(".")


def format_share(share: float) -> str:
    """A share in percent, with three digits: 93.5 %. Only 1 is 100 %, and only 0 is 0 %."""
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return "< 0.1 %" if 0 < share < 0.001 else f"{100 * share:.3g} %"


def format_seconds(seconds: float) -> str:
    """The time in the units that people use: 0.84 s, 11.6 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if seconds < 60:
        return f"{format_number(seconds)} s"
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (seconds, "s")]
    largest = next(at for at, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number:,} {unit}" for number, unit in parts[largest : largest + 2] if number)


def counted(count: int, noun: str) -> str:
    """The number of things: "1 shard", "1,000 shards"."""
    return f"{count:,} {noun}{'s' * (count != 1)}"
