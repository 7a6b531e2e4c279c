"""Label files, and lists of class names in an order of their own: line n of a file is the n-th class.

synsets has the lists that are sorted."""

import bisect
import hashlib
import itertools
from collections.abc import Sequence

from pipeline.shards.errors import LabelError
from pipeline.shards.storage import Storage

__all__ = ["label_text", "names_digest", "parse_class_names", "position", "read_class_names"]


def read_class_names(storage: Storage, label_file: str) -> tuple[str, ...]:
    """The lines of a label file, in order. Raises LabelError for an empty or double one, or bytes that are no text."""
    return parse_class_names(storage.read(label_file), label_file)


def parse_class_names(data: bytes, where: str) -> tuple[str, ...]:
    """See read_class_names; empty lines at the end do not count. where: what messages call it."""
    names = [line.strip() for line in label_text(data, where).rstrip().splitlines()]
    twice = sorted(a for a, b in itertools.pairwise(sorted(names)) if a == b)
    if not names or "" in names:
        raise LabelError(f"{where}: line {names.index('') + 1 if names else 1} is empty; it must name a class.")
    if twice:
        raise LabelError(f"{where}: {twice[0]} stands there twice.")
    return tuple(names)


def label_text(data: bytes, where: str) -> str:
    """A label file's text, without the mark that some editors put before it. Raises LabelError where it is none."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise LabelError(
            f"{where} is not UTF-8 text: {e.reason} at byte {e.start}. Is it another file, or damaged?"
        ) from e


def names_digest(names: Sequence[str]) -> str:
    """32 hex digits that change with any name and with their order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def position(names: Sequence[str], name: str) -> int:
    """The index of a name in a sorted list, or -1."""
    place = bisect.bisect_left(names, name)
    return place if place < len(names) and names[place] == name else -1
