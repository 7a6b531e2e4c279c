"""Lists of classes by WordNet id: ImageNet's own 1,000, or a file's. The place in the sorted list is the label."""

import bisect
import itertools
from collections.abc import Sequence
from importlib.resources import files

from pipeline.shards.errors import LabelError, did_you_mean
from pipeline.shards.storage import Storage

__all__ = ["check_known", "ilsvrc2012_synsets", "position", "read_synsets", "read_text"]


def ilsvrc2012_synsets() -> tuple[str, ...]:
    """The 1,000 classes of ILSVRC2012, sorted."""
    return tuple(files("converters").joinpath("imagenet_synsets.txt").read_text().split())


def read_text(storage: Storage, path: str) -> str:
    """A label file's text. Raises LabelError where it is none."""
    try:
        return storage.read(path).decode()
    except UnicodeDecodeError as e:
        raise LabelError(
            f"{path} is not UTF-8 text: {e.reason} at byte {e.start}. Is it another file, or damaged?"
        ) from e


def read_synsets(storage: Storage, label_file: str) -> tuple[str, ...]:
    """The classes in a label file, sorted: the first word of each line. Raises LabelError on an empty or double one."""
    lines = read_text(storage, label_file).splitlines()
    synsets = sorted(line.split()[0] for line in lines if line.strip())
    twice = sorted({a for a, b in itertools.pairwise(synsets) if a == b})
    if twice or not synsets:
        raise LabelError(f"{label_file}: {f'{twice[0]} stands there twice' if twice else 'there is no class in it'}.")
    return tuple(synsets)


def check_known(synset: str, synsets: Sequence[str], where: str) -> None:
    """Raises LabelError, naming where it stands, for a class that is not in the list."""
    if position(synsets, synset) < 0:
        nearest = did_you_mean(synset, synsets) if len(synsets) <= 20 else ""
        raise LabelError(
            f"{where}: class {synset!r} is not in the label list ({len(synsets)} classes, {synsets[0]}..{synsets[-1]})."
            f"{nearest} Give the full list with --label_file."
        )


def position(synsets: Sequence[str], synset: str) -> int:
    """The place in the sorted list, or -1."""
    place = bisect.bisect_left(synsets, synset)
    return place if place < len(synsets) and synsets[place] == synset else -1
