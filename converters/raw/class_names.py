"""Lists of class names.

In a label file line n names the n-th class; synsets reads label files of WordNet ids, whose order
does not matter."""

import bisect
import hashlib
import itertools
from collections.abc import Sequence

from pipeline.errors import LabelError
from pipeline.storage.schemes import open_storage


def read_class_names(label_file: str) -> tuple[str, ...]:
    """The lines of a label file, in order. Raises LabelError if a line is empty or repeated, or not
    UTF-8."""
    return parse_class_names(read_label_text(label_file), label_file)


def parse_class_names(text: str, where: str) -> tuple[str, ...]:
    """The same, from the content of the file. Ignores empty lines at the end. where: its name in
    error messages."""
    names = [line.strip() for line in text.rstrip().splitlines()]
    repeated = sorted(a for a, b in itertools.pairwise(sorted(names)) if a == b)
    if not names or "" in names:
        raise LabelError(
            f"{where}: line {names.index('') + 1 if names else 1} is empty; it must name a class."
        )
    if repeated:
        raise LabelError(f"{where}: {repeated[0]} is listed twice.")
    return tuple(names)


def read_label_text(path: str) -> str:
    """The text of a label file, as from label_text."""
    return label_text(open_storage(path).read(path), path)


def label_text(data: bytes, where: str) -> str:
    """The text of a label file, without a byte order mark. Raises LabelError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise LabelError(
            f"{where} is not UTF-8 text: {e.reason} at byte {e.start}. It may be the wrong file, "
            "or damaged."
        ) from e


def names_digest(names: Sequence[str]) -> str:
    """32 hex digits that depend on the names and their order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def position(names: Sequence[str], name: str) -> int:
    """The index of a name in a sorted list, or -1."""
    place = bisect.bisect_left(names, name)
    return place if place < len(names) and names[place] == name else -1
