"""Lists of classes by WordNet id: ImageNet's own 1,000, or a file's. The place in the sorted list is the label.

A line is an id and, if there are any, words for people: `n01440764 tench, Tinca tinca`."""

import itertools
from collections.abc import Mapping, Sequence
from importlib.resources import files

from converters.class_names import label_text, position
from pipeline.shards.errors import LabelError, did_you_mean
from pipeline.shards.storage import Storage

__all__ = ["check_known", "ilsvrc2012_synsets", "read_synsets"]


def ilsvrc2012_synsets() -> Mapping[str, str]:
    """The 1,000 classes of ILSVRC2012, sorted, and WordNet's words for each."""
    return dict(_classes(files("converters").joinpath("imagenet_synsets.txt").read_text()))


def read_synsets(storage: Storage, label_file: str) -> Mapping[str, str]:
    """The classes in a label file, sorted, and their words or "". Raises LabelError on an empty or double one."""
    classes = _classes(label_text(storage.read(label_file), label_file))
    twice = [a for (a, _), (b, _) in itertools.pairwise(classes) if a == b]
    if twice or not classes:
        raise LabelError(f"{label_file}: {f'{twice[0]} stands there twice' if twice else 'there is no class in it'}.")
    return dict(classes)


def _classes(text: str) -> list[tuple[str, str]]:
    parts = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return sorted((synset, words[0].strip() if words else "") for synset, *words in parts)


def check_known(synset: str, synsets: Sequence[str], where: str) -> None:
    """Raises LabelError, naming where it stands, for a class that is not in the list."""
    if position(synsets, synset) < 0:
        nearest = did_you_mean(synset, synsets) if len(synsets) <= 20 else ""
        raise LabelError(
            f"{where}: class {synset!r} is not in the label list ({len(synsets)} classes, {synsets[0]}..{synsets[-1]})."
            f"{nearest} Give the full list with --label_file."
        )
