"""Labels and their counts, in words."""

from collections.abc import Mapping

from pipeline.shards.schema import Labels

MOST_NAME = 60  # characters


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def label_text(labels: Labels, label: int) -> str:
    """The number of a label, and its name if it has one."""
    name = labels.name_of(label)
    return f"{label} {'(outside the range)' if name is None else shortened(name, MOST_NAME)}"


def label_rows(labels: Labels, counts: Mapping[int, int], most: int) -> tuple[list[tuple[str, int]], str]:
    """(name, count) of the labels, also of classes that do not occur: all in order, or the most and the least frequent,
    which the text says."""
    every = dict.fromkeys(range(labels.base, labels.base + labels.count), 0) | dict(counts)
    ranked, told = sorted(every.items(), key=lambda pair: -pair[1]), ""
    if len(ranked) > most:
        half = most // 2
        ranked = ranked[:half] + ranked[-half:]
        told = f"Only the {half} most frequent and the {half} least frequent labels are shown."
    else:
        ranked.sort()
    return [(label_text(labels, label), count) for label, count in ranked], told


def occurring(labels: Labels, counts: Mapping[int, int]) -> str:
    """How many of the classes occur, in a clause."""
    found = sum(labels.name_of(label) is not None for label in counts)
    return f"{found:,} of {labels.count:,} classes occur{'s' * (found == 1)}"


def outside(labels: Labels, counts: Mapping[int, int]) -> str:
    """How many labels are no class, in a sentence; "" if there are none."""
    found = sum(count for label, count in counts.items() if labels.name_of(label) is None)
    classes = f"{labels.base}..{labels.base + labels.count - 1}"
    return f"{found:,} label{'s are' if found != 1 else ' is'} outside {classes}." if found else ""
