"""What the operating system says when a file cannot be read or written, with what to do about it."""

import errno
import os

__all__ = ["advice_for", "explained"]

_FULL = "Free space there, then run the same command again."
_ADVICE = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "It is larger than this process (ulimit -f) or the file system allows: choose another place.",
    errno.EROFS: "Choose a directory on another file system.",
    errno.EACCES: "Grant this user access to it, or choose another place.",
    errno.EPERM: "Grant this user access to it, or choose another place.",
    errno.EEXIST: "A file has this name; choose another place.",
    errno.ENOTDIR: "A part of the path is a file; choose another place.",
}


def explained(error: OSError) -> str:
    """No space left on device. Free space there, ...: in sentences, without the path."""
    advice = _ADVICE.get(error.errno or 0)
    return f"{error.strerror or error}." + (f" {advice}" if advice else "")


def advice_for(text: str) -> str:
    """The advice for an error whose text is all that a library has kept; "" if there is none."""
    return next((advice for number, advice in _ADVICE.items() if os.strerror(number) in text), "")
