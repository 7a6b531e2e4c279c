"""How many cores and how much memory this process may use.

That is what the machine has, or less if a cgroup limits it: a few small files of the kernel
tell."""

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

SPARE = 0.1  # of the free memory, for everything else
# cgroup v2, v1: the limit, the usage, and the name of the part of it that the kernel can reclaim.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


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
