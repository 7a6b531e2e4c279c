"""Stamps detect that a file on a disk was rewritten: disks keep no checksums."""

import hashlib
import os

from pipeline.storage.storage import Stat

__all__ = ["stamped"]


def stamped(found: os.stat_result) -> Stat:
    """The size of a file, and a stamp made of its times."""
    return Stat(found.st_size, stamp=_stamp(found))


def _stamp(found: os.stat_result) -> int:
    """Copies may keep mtime, but no program can set ctime. Inode and device numbers would differ between hosts."""
    times = b"%d %d" % (found.st_mtime_ns, found.st_ctime_ns)
    return int.from_bytes(hashlib.blake2b(times, digest_size=8).digest(), "big")
