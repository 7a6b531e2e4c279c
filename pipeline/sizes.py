"""Sizes in bytes: parsed and formatted (100MB is 10^8 bytes, 100MiB is 100 * 2^20), other numbers
as people write them, and how many cores and how much memory this process may use.

That is what the machine has, or less if a cgroup limits it: a few small files of the kernel
tell."""

import contextlib
import functools
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import OptionError

KB = 10**3
MB = 10**6
GB = 10**9
TB = 10**12
KiB = 2**10
MiB = 2**20

_UNITS = {"": 1, "B": 1, "KB": KB, "MB": MB, "GB": GB, "TB": TB}
_UNITS |= {"KIB": KiB, "MIB": MiB, "GIB": 2**30, "TIB": 2**40}

SPARE = 0.1  # of the free memory, for everything else

# cgroup v2, v1: the limit, the usage, and the name of the part of it that the kernel can reclaim.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


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


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be used without swapping or being killed. root: where /proc and /sys are.

    Without these files (not Linux), all of the machine's memory counts as free."""
    try:
        free = 1024 * _numbers(root / "proc/meminfo")["MemAvailable:"]
    except (OSError, KeyError):
        free = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(0, min([free, *_left_in_cgroups(root)]))


def room_for_a_cache() -> int:
    """Bytes of the free memory that one cache may use."""
    return int((1 - SPARE) * free_memory_bytes())


_sharing = [1]


def share_cores(processes: int) -> None:
    """States how many processes of a run are on this machine."""
    _sharing[0] = processes
    num_cores.cache_clear()


@functools.cache
def num_cores(root: Path = Path("/")) -> int:
    """The cores that this process may use, at least 1: those it is bound to, or fewer if a cgroup
    has a quota; of a whole machine its share (`share_cores`). root: as in free_memory_bytes."""
    every = os.cpu_count() or 1
    bound = hasattr(os, "sched_getaffinity")  # macOS has no such call
    cores = min([len(os.sched_getaffinity(0)) if bound else every, *_quotas(root)])
    return max(1, cores // _sharing[0] if cores == every else cores)


def _quotas(root: Path) -> Iterator[int]:
    for directory in _cgroups(root, "cpu"):
        for files in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):  # of v2, v1
            with contextlib.suppress(OSError, ValueError):  # "max" means no quota
                texts = [(directory / name).read_text() for name in files]
                quota, period = map(int, " ".join(texts).split())
                if quota > 0:
                    yield quota // period


def _left_in_cgroups(root: Path) -> Iterator[int]:
    for directory in _cgroups(root, "memory"):
        for bound, used, droppable in _FILES:
            try:
                # "max" means no limit, and raises ValueError
                limit = int((directory / bound).read_text())
                taken = int((directory / used).read_text()) - _numbers(
                    directory / "memory.stat"
                ).get(droppable, 0)
            except (OSError, ValueError):
                continue
            yield limit - taken


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """The cgroups of this process with a controller and all their parents: each may have a
    limit."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / (controller if controllers else "")
        # Inside a container the path may be the host's. Then only the base exists, and is the
        # container's own.
        names = path.strip("/").split("/")
        yield from (base.joinpath(*names[:depth]) for depth in range(len(names) + 1))


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in words}
