"""Files that stay open between reads of single ranges, for reading in any order. Local disks only.

LocalStorage opens a file for each run of ranges, which is cheap for large reads. A small read at random costs less than
the opening, so random access to records uses this."""

import functools
import os

__all__ = ["OpenFiles"]

FILES = 256  # a process may usually open 1,024; beyond these, a read costs another ~5 us for opening


class OpenFiles:
    """Reads ranges of files, and keeps up to 256 files open. Threads may share it, and forked processes may use it.

    It never moves a file's position, so a forked process can read through the descriptors that it has inherited."""

    def __init__(self) -> None:
        # A file is closed once it is neither among these nor in use by a thread.
        self._opened = functools.lru_cache(FILES)(_OpenFile)

    def read(self, path: str, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer at the end of the file, after a signal, and above 2 GiB. Raises OSError."""
        file = self._opened(path)
        return os.pread(file.fd, size, offset)


class _OpenFile:
    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self, close=os.close) -> None:  # bound now: at exit, the module may be gone
        if self.fd >= 0:
            close(self.fd)
