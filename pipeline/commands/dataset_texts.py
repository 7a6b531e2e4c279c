"""Texts about a dataset: the names of its labels, values of features, packed text, and the commands
that read it."""

import math
import shlex
from array import array
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from pipeline.console.commands import program
from pipeline.errors import InfeedError, OptionError, StorageError
from pipeline.shards.manifest import Manifest
from pipeline.shards.schema import Labels
from pipeline.tokenizers import PACKED_TEXT, TextInfo, read_text_info

MOST_NAME = 60  # characters
MOST_VALUES = 50_000  # of a feature: 0.4 MB
FEW = 32  # values, of which a loop is faster than NumPy
TOTALS = (
    "split",
    "documents",
    "text bytes",
    "tokens",
    "bytes per token",
    "tokens per row",
    "rows filled",
)
_BETWEEN = " ┊ "  # segments
CROP, BATCH = 224, 32
LEAST_IMAGENET = 100_000  # records: its recipe has a batch of 1,024 and a schedule for a million
# of the recipe images: the smallest --size for its model, and its default
LEAST_SIDE, RECIPE_SIDE = (16, 64)


def shortened(text: str, most: int) -> str:
    """The text, or its beginning and its length."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


def label_text(labels: Labels, label: int) -> str:
    """The number of a label, and its name if it has one."""
    name = labels.name_of(label)
    return f"{label} {'(outside the range)' if name is None else shortened(name, MOST_NAME)}"


def label_rows(
    labels: Labels, counts: Mapping[int, int], most: int
) -> tuple[list[tuple[str, int]], str]:
    """(name, count) of the labels, also of classes that do not occur: all in order, or the most and
    the least frequent, which the text says."""
    every = dict.fromkeys(range(labels.base, labels.base + labels.count), 0) | dict(counts)
    ranked = sorted(every.items(), key=lambda pair: -pair[1])
    note = ""
    if len(ranked) > most:
        half = most // 2
        ranked = ranked[:half] + ranked[-half:]
        note = f"Only the {half} most frequent and the {half} least frequent labels are shown."
    else:
        ranked.sort()
    return [(label_text(labels, label), count) for label, count in ranked], note


def occurring(labels: Labels, counts: Mapping[int, int]) -> str:
    """How many of the classes occur, in a clause."""
    num_named = sum(labels.name_of(label) is not None for label in counts)
    return f"{num_named:,} of {labels.count:,} classes occur{'s' * (num_named == 1)}"


def outside(labels: Labels, counts: Mapping[int, int]) -> str:
    """How many labels are no class, in a sentence; "" if there are none."""
    num_records = sum(count for label, count in counts.items() if labels.name_of(label) is None)
    classes = f"{labels.base}..{labels.base + labels.count - 1}"
    return (
        f"{num_records:,} label{'s are' if num_records != 1 else ' is'} outside {classes}."
        if num_records
        else ""
    )


class Values:
    """Keeps the finite numbers, or a random sample if there are more than MOST_VALUES; the same in
    every run.

    count: of all numbers; bad: of those that are not finite. low, high: exact, so integers stay
    integers; None if no number is finite."""

    def __init__(self) -> None:
        self.count = self.bad = 0
        self.low: float | None = None
        self.high: float | None = None
        self._kept = array("d")
        self._part = 1
        self._rng = np.random.default_rng(0)

    def add(self, values: Sequence[float]) -> None:
        """Takes these numbers."""
        finite = _finite(values)
        self.count += len(values)
        self.bad += len(values) - len(finite)
        if not finite:
            return
        low = min(finite)
        high = max(finite)
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        if self._part > 1:
            finite = np.asarray(finite, np.float64)[
                self._rng.random(len(finite)) < 1 / self._part
            ].tolist()
        self._kept.extend(finite)
        while len(self._kept) > MOST_VALUES:
            half = self._rng.random(len(self._kept)) < 0.5
            self._kept = array("d", np.frombuffer(self._kept)[half].tobytes())
            self._part *= 2

    @property
    def complete(self) -> bool:
        """Whether all finite numbers are kept."""
        return self._part == 1

    @property
    def kept(self) -> np.ndarray:
        """float64 [n]: those that were kept; always with the smallest and the largest."""
        return np.array(
            self._kept if self.complete else [*self._kept, self.low, self.high], np.float64
        )


def _finite(values: Sequence[float]) -> Sequence[float]:
    if len(values) <= FEW:
        return [value for value in values if math.isfinite(value)]
    numbers = np.asarray(values)
    if numbers.dtype.kind != "f":
        return values
    return numbers[np.isfinite(numbers)].tolist()


def find_text_info(manifest: Manifest) -> TextInfo | None:
    """How the text of the dataset became tokens; None if it contains no packed text. Raises
    OptionError."""
    return read_text_info(manifest.directory) if manifest.schema.name == PACKED_TEXT else None


def text_problem(manifest: Manifest) -> str:
    """What is wrong with text.json or tokenizer.json; "" if both are intact, or if there is no
    packed text."""
    try:
        if info := find_text_info(manifest):
            info.files()
    except (OptionError, StorageError) as e:
        return str(e)
    return ""


def text_totals(manifest: Manifest, info: TextInfo) -> Iterator[Sequence[str]]:
    """The values of TOTALS for each split. Rows filled: the share of places that are not
    padding."""
    for name, entry in sorted(manifest.splits.items()):
        documents, size, tokens, segments = (
            entry.totals.get(f"num_{what}", 0)
            for what in ("documents", "bytes", "tokens", "segments")
        )
        places = entry.num_records * info.sequence_length
        yield (
            name,
            f"{documents:,}",
            f"{size:,}",
            f"{tokens:,}",
            f"{size / tokens:.3f}" if tokens else "",
            f"{tokens / entry.num_records:.1f}" if entry.num_records else "",
            f"{(tokens + segments) / places:.2%}" if places else "",
        )


def row_text(info: TextInfo, values: Mapping[str, Sequence[Any]]) -> str:
    """The text of a row, with a mark between segments; or why it cannot be decoded."""
    placed = zip(values["segment_ids"], values["tokens"], strict=True)
    try:
        texts = []
        for number, segment in groupby(placed, itemgetter(0)):
            if number:
                texts.append(info.tokenizer.decode([token for _, token in segment]))
    except InfeedError as e:
        return f"({e})"
    return _BETWEEN.join(texts)


def commands(manifest: Manifest, side: int | None = None) -> str:
    """Commands that verify it and train on it, one per line. side: of its images, in pixels, if it
    is known."""
    lines = [f"{program('pipeline.commands.verify')} {shlex.quote(manifest.directory)}"]
    if (recipe := recipe_of(manifest)) and (split := _train_split(manifest)):
        options = [
            "--data-dir",
            manifest.directory,
            "--workdir",
            f"runs/{recipe}",
            *_splits(manifest, split),
        ]
        if recipe == "images" and side and side < RECIPE_SIDE:
            options += ["--size", str(max(side, LEAST_SIDE))]
        lines.append(f"{program('trainer')} {recipe} {shlex.join(options)}")
    return "\n".join(lines)


def python(manifest: Manifest, side: int | None = None) -> str:
    """A program that reads batches of its training split; of opaque records, one of them."""
    split = _train_split(manifest) or next(iter(sorted(manifest.splits)))
    image = _image(manifest)
    batch = min(BATCH, max(1, manifest.splits[split].num_records))
    size = min(side or CROP, CROP)
    opened = f"records = open_dataset({manifest.directory!r}, {split!r})"
    if manifest.schema.opaque:
        return "\n".join(
            [
                "from pipeline.datasets import open_dataset",
                "",
                opened,
                "print(len(records), records[0])",
            ]
        )
    lines = [
        "from pipeline.datasets import open_dataset, train_dataset",
        "",
        opened,
        "print(len(records), list(records.examples()[0]))",
    ]
    ops = ""
    if image:
        lines.insert(1, "from pipeline.ops import DecodeRandomResizedCrop")
        lines.append(
            f'crop = DecodeRandomResizedCrop({image!r}, into="image", size=({size}, {size}))'
        )
        ops = ", ops=[crop]"
    return "\n".join(
        [*lines, f"for batch in train_dataset(records, global_batch={batch}{ops}):", "    ..."]
    )


def recipe_of(manifest: Manifest) -> str | None:
    """The name of a recipe that trains on these records without changes; None if there is none."""
    if manifest.schema.name == PACKED_TEXT:
        return "byte_lm"
    labels = manifest.labels
    features = manifest.schema.features
    if not _image(manifest) or not labels or labels.count < 2 or labels.key not in features:
        return None
    one_number = (features[labels.key].dtype, features[labels.key].shape) == ("int64", ())
    records = sum(entry.num_records for entry in manifest.splits.values())
    imagenet = labels.count == 1000 and records >= LEAST_IMAGENET
    return ("imagenet_resnet50" if imagenet else "images") if one_number else None


def _train_split(manifest: Manifest) -> str | None:
    """train, or the largest; None if no split has records."""
    sizes = {
        name: entry.num_records for name, entry in manifest.splits.items() if entry.num_records
    }
    return "train" if "train" in sizes else max(sizes, key=lambda name: sizes[name], default=None)


def _splits(manifest: Manifest, train: str) -> list[str]:
    """The flags that choose what to train on and what to evaluate, where recipes' defaults do not
    fit."""
    others = [
        name
        for name, entry in sorted(manifest.splits.items())
        if name != train and entry.num_records
    ]
    if not others:
        return ["--train-split", f"{train}[:90%]", "--eval-split", f"{train}[90%:]"]
    options = [] if train == "train" else ["--train-split", train]
    if "validation" not in others:
        similar = [name for name in others if name.startswith("val")]
        options += ["--eval-split", [*similar, *others][0]]
    return options


def _image(manifest: Manifest) -> str | None:
    """Its only feature with an image; None if there are several or none."""
    shapes = {
        key: feature.shape
        for key, feature in manifest.schema.features.items()
        if feature.content == "image"
    }
    return next(iter(shapes)) if [*shapes.values()] == [()] else None
