"""How much memory this process may still take: what the machine has free, or less where a cgroup bounds it.

Caches ask before they promise to hold something. Stdlib only; reads a few small files of the kernel."""

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["free_memory_bytes", "room_for_a_cache"]

SPARE = 0.1  # of the free memory, for everything else

# cgroup v2, v1: the bound, what is used of it, and the name of that part of it which the kernel drops when asked.
_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def free_memory_bytes(root: Path = Path("/")) -> int:
    """What can be taken without swapping and without being killed. root: where /proc and /sys are.

    Where the kernel does not say (no Linux) all of the machine's memory counts as free."""
    return max(0, min([_of_machine(root), *_left_in_cgroups(root)]))


def room_for_a_cache() -> int:
    """Bytes of the free memory that one cache may take."""
    return int((1 - SPARE) * free_memory_bytes())


def _of_machine(root: Path) -> int:
    try:
        return 1024 * _numbers(root / "proc/meminfo")["MemAvailable:"]
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _left_in_cgroups(root: Path) -> Iterator[int]:
    for directory in _cgroups(root):
        for bound, used, droppable in _FILES:
            try:
                limit = int((directory / bound).read_text())  # "max": no bound
                taken = int((directory / used).read_text()) - _numbers(directory / "memory.stat").get(droppable, 0)
            except (OSError, ValueError):
                continue
            yield limit - taken


def _cgroups(root: Path) -> Iterator[Path]:
    """The memory cgroups of this process, with all above: each may have a bound."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        base = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        # Inside a container the path may be the host's; then only the base is there, and is the container's own.
        names = path.strip("/").split("/")
        yield from (base.joinpath(*names[:depth]) for depth in range(len(names) + 1))


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    words = (line.split() for line in path.read_text().splitlines())
    return {name: int(number) for name, number, *_ in words}
