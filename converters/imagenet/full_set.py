"""The check of --full_set: that the raw data is ILSVRC2012 and complete."""

from collections.abc import Mapping, Sequence

from converters.imagenet.layouts import RawImagenet
from converters.imagenet.synsets import ilsvrc2012_synsets
from converters.raw.class_names import names_digest
from pipeline.errors import RawDataError

__all__ = ["FULL_SET", "check_full_set"]

FULL_SET: Mapping[str, int] = {"train": 1_281_167, "validation": 50_000}
_VALIDATION_LABELS = "82706d9a9dfbb5db50f3ba259b4d1a02"  # of the 50,000 synsets in the order of the images


def check_full_set(raw: RawImagenet, splits: Sequence[str]) -> None:
    """Raises RawDataError if a class is missing or the validation labels are not the official ones.

    The scan counts the images. Nothing checks that class folders contain the right ones."""
    for split in splits:
        there = {source.tag for source in raw.sources if source.split == split and source.tag}
        missing = [synset for synset in ilsvrc2012_synsets() if there and synset not in there]
        if missing:
            raise RawDataError(
                f"--full_set: {split} has {len(there)} classes of 1,000: {missing[0]} is missing"
                f"{f', and {len(missing) - 1} more' if missing[1:] else ''}. Copy them, or leave out --full_set."
            )
    labels = raw.validation_labels
    if labels and names_digest(labels) != _VALIDATION_LABELS:
        raise RawDataError(
            f"--full_set: the {len(labels):,} validation labels are not the official 50,000 of ILSVRC2012 (line n is "
            "validation image n, in the order of file names). Use the original list, or leave out --full_set."
        )
