"""The operating system's messages for failed reads and writes, with remedies."""

import errno
import os

__all__ = ["advice_for", "explained"]

_FULL = "Free space there, then run the same command again."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "It is larger than this process (ulimit -f) or the file system allows; choose another place.",
    errno.EROFS: "Choose a directory on another file system.",
    errno.EACCES: "Grant this user access to it, or choose another place.",
    errno.EPERM: "Grant this user access to it, or choose another place.",
    errno.EEXIST: "A file has this name; choose another place.",
    errno.ENOTDIR: "A part of the path is a file; choose another place.",
}


def explained(error: OSError) -> str:
    """The message and the remedy in sentences, without the path: No space left on device. Free space there, ..."""
    advice = _ADVICE.get(error.errno or 0)
    return f"{error.strerror or error}." + (f" {advice}" if advice else "")


def advice_for(text: str) -> str:
    """The remedy for an error of which a library kept only the text; "" if there is none."""
    return next((advice for number, advice in _ADVICE.items() if os.strerror(number) in text), "")
