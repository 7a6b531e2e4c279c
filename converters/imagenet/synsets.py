"""Lists of classes by WordNet id: ImageNet's 1,000, or those of a label file. Labels are places in the sorted list.

A line has an id and optionally a description: `n01440764 tench, Tinca tinca`."""

import itertools
from collections.abc import Mapping, Sequence
from importlib.resources import files

from converters.raw.class_names import label_text, position
from pipeline.errors import LabelError, did_you_mean
from pipeline.storage.storage import Storage


def ilsvrc2012_synsets() -> Mapping[str, str]:
    """The 1,000 classes of ILSVRC2012, sorted, with WordNet's description of each."""
    return dict(_classes(files("converters.imagenet").joinpath("synsets.txt").read_text()))


def read_synsets(storage: Storage, label_file: str) -> Mapping[str, str]:
    """Classes -> descriptions or "" of a label file, sorted. Raises LabelError if it has none or repeats one."""
    classes = _classes(label_text(storage.read(label_file), label_file))
    repeated = [a for (a, _), (b, _) in itertools.pairwise(classes) if a == b]
    if repeated or not classes:
        raise LabelError(f"{label_file}: {f'{repeated[0]} is listed twice' if repeated else 'it has no classes'}.")
    return dict(classes)


def _classes(text: str) -> list[tuple[str, str]]:
    parts = (line.split(maxsplit=1) for line in text.splitlines() if line.strip())
    return sorted((synset, words[0].strip() if words else "") for synset, *words in parts)


def check_known(synset: str, synsets: Sequence[str], where: str) -> None:
    """Raises LabelError for a class that is not in the list. where: its place, for the error."""
    if position(synsets, synset) < 0:
        nearest = did_you_mean(synset, synsets) if len(synsets) <= 20 else ""
        raise LabelError(
            f"{where}: class {synset!r} is not in the label list ({len(synsets)} classes, {synsets[0]}..{synsets[-1]})."
            f"{nearest} Give the full list with --label-file."
        )
