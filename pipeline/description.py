"""What gives the numbers in records their meaning: features, class names, vocabularies, statistics
and the tokenizer.

open_dataset finds it, a training run keeps it with its model, and the records of other data get the
model's numbers by name, or are refused. NumPy only."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from pipeline.errors import OptionError, SchemaError
from pipeline.logs import logger
from pipeline.raw.cells import MISSING, class_number
from pipeline.shards.manifest import Manifest
from pipeline.shards.schema import ColumnStatistics, Labels, Schema, Statistics, read_statistics
from pipeline.storage.storage import Storage, join
from pipeline.tokenizers import PACKED_TEXT, TEXT_FILE, TextInfo, read_text_info

__all__ = ["Description"]

log = logger("pipeline")

_SHOWN = 60  # characters of a tokenizer's setting


@dataclass(frozen=True)
class Description:
    """schema: the features of the records. labels: the names of the classes. columns: statistics of
    a table's columns in the split that was opened, with the names of categories. text: how text
    became tokens."""

    schema: Schema
    labels: Labels | None = None
    columns: Statistics = field(default_factory=dict[str, ColumnStatistics])
    text: TextInfo | None = None

    def names(self, key: str | None) -> Labels | None:
        """The names of the numbers of a feature; None if they have none."""
        if self.labels is not None and self.labels.key == key:
            return self.labels if self.labels.names else None
        column = self.columns.get(key or "")
        return (
            Labels(key or "", 0, tuple(column.categories)) if column and column.categories else None
        )

    def continued_with(self, data: "Description", target: str | None) -> "Description":
        """The description of a run on `data` that starts from a model with this one: it stays as it
        is, except that the target, if there is one, has the classes of the data, or none. A number
        keeps the statistics of the model."""
        columns = dict(self.columns or data.columns)
        labels = self.labels or data.labels
        features = data.schema.features
        if target is not None and target in features:
            before = columns.pop(target, None)
            if before and not (self.names(target) or data.names(target)):
                columns[target] = before  # the head predicts a number by them
            elif target in data.columns:
                columns[target] = data.columns[target]
            if target in [each.key for each in (self.labels, data.labels) if each]:
                labels = data.labels
        own = self.schema.features
        schema = replace(
            data.schema,
            features={k: each if k == target else own.get(k, each) for k, each in features.items()},
        )
        return Description(schema, labels, columns, self.text or data.text)


class Source(NamedTuple):
    """One of several sources of records. start: its first record. name: for messages."""

    start: int
    name: str
    description: Description


def joined_labels(one: Labels | None, other: Labels | None) -> Labels | None:
    """The classes of both: those of `one` keep their numbers, and those that only `other` has
    follow. None unless both name the classes of one feature."""
    if one is None or other is None or one.key != other.key:
        return None
    numbers = {name: number for number, name in enumerate(one.names, one.base)}
    new = (name for name in other.names if class_number(numbers, name) == MISSING)
    return replace(one, names=(*one.names, *new))


def joined(one: Description, other: Description) -> Description:
    """The description of the records of both: that of `one`, with the classes of both, and the sums
    of their counts."""
    columns = dict(one.columns)
    for key, column in one.columns.items():
        if names := joined_labels(one.names(key), other.names(key)):
            counts = Counter(column.categories)
            counts.update(other.columns[key].categories if key in other.columns else {})
            columns[key] = replace(column, categories={name: counts[name] for name in names.names})
    labels = one.labels and joined_labels(one.labels, other.names(one.labels.key))
    return replace(one, labels=labels or one.labels, columns=columns)


Describe = Callable[[Description | None], Description | None]
"""From the description of some data to that of the model to which they are given; None if it has
none."""
SAME_CLASSES = "class numbers assumed to match (same_classes)"
NOT_COMPARED = "classes not compared"


def unproven_classes(
    model: Description | None, data: Description | None, target: str | None, has_classes: bool
) -> str:
    """What an evaluation states if it did not compare the names of the target's classes; else "".

    target: default: the feature with class names. has_classes: whether it is known to have some."""
    known = [each for each in (model, data) if each]
    target = target or next((each.labels.key for each in known if each.labels), None)
    named = {each.names(target) is not None for each in known}
    if len(known) == 2:
        return SAME_CLASSES if len(named) == 2 else ""
    return NOT_COMPARED if has_classes or True in named else ""


def description_of(
    manifest: Manifest, split: str, labels: Labels | None, storage: Storage
) -> Description | None:
    """The description of a converted split; None if its records are opaque.

    Raises SchemaError or OptionError for damaged files."""
    schema = manifest.schema
    directory = manifest.directory
    if schema.opaque:
        return None
    columns = read_statistics(storage, directory).get(split, {}) if "table" in schema.name else {}
    is_text = schema.name == PACKED_TEXT and storage.exists(join(directory, TEXT_FILE))
    return Description(schema, labels, columns, read_text_info(directory) if is_text else None)


@dataclass(frozen=True, eq=False)
class Renumbering:
    """The model's numbers of a feature's classes in other data, which may have several sources.

    starts: int64 [sources], the first record of each. ends: int64 [sources], where its classes end
    in own and numbers. own: int64 [classes], their numbers in the data, consecutive in each source.
    numbers: those of the model; MISSING where it has no such class. is_target: whether the model
    predicts the feature. strict: whether a number that is no class is an error, or missing."""

    key: str
    starts: np.ndarray
    ends: np.ndarray
    own: np.ndarray
    numbers: np.ndarray
    is_target: bool
    strict: bool

    def __call__(self, values: np.ndarray, record_ids: np.ndarray | int) -> np.ndarray:
        """The values [n, ...] of these records, int64, as the model numbers them. If strict,
        SchemaError for a number that is neither a class of its source nor MISSING."""
        source = np.searchsorted(self.starts, record_ids, side="right") - 1
        source = source.reshape(source.shape + (1,) * (values.ndim - source.ndim))
        end = self.ends[source]
        first = np.where(source, self.ends[source - 1], 0)
        place = first + values.astype(np.int64) - self.own[first]
        known = (place >= first) & (place < end)
        outside = ~known & (values != MISSING)
        if self.strict and outside.any():
            value, first, end = (
                each[outside][0] for each in np.broadcast_arrays(values, first, end)
            )
            raise SchemaError(
                f"{self.key!r} is {value}, which is not one of its {end - first} classes, "
                f"{self.own[first]}..{self.own[end - 1]}, or {MISSING} for none. Convert the data "
                "again, or leave the record out."
            )
        return np.where(known, self.numbers[np.where(known, place, 0)], MISSING)

    @property
    def changes(self) -> bool:
        """Whether any number differs."""
        return not np.array_equal(self.numbers, self.own)

    @property
    def hides(self) -> bool:
        """Whether it makes categories of an input missing that the model has never seen."""
        return not self.is_target and bool((self.numbers == MISSING).any())


def renumberings(
    model: Description,
    sources: Sequence[Source],
    keys: Collection[str],
    target: Mapping[str, int],
    *,
    strict: bool = True,
    same_classes: bool = False,
) -> dict[str, Renumbering]:
    """How records of these sources get the numbers of the model: by feature, where they differ; of
    the target always.

    keys: the features that are read. target: the number of classes by the one that the model
    predicts, if any; a class that the model lacks is refused, or missing unless `strict`.
    same_classes: whether classes that have names on one side only have the same numbers. Raises
    OptionError with the first difference that no renumbering can bridge."""
    for source in sources:
        _check_text(model, source)
    by_key = dict[str, Renumbering]()
    for key in sorted(keys):
        ours = model.names(key)
        named = [source.description.names(key) for source in sources]
        if None in named and any(named):
            raise OptionError(
                f"{' + '.join(source.name for source in sources)}: only some of them name the "
                f"classes of {key!r}. Convert them together, or read each on its own."
            )
        own, numbers = list[np.ndarray](), list[np.ndarray]()
        for source, labels in zip(sources, named, strict=True):
            _check_kind(key, model, source)
            if ours is not None and labels is not None:
                numbers.append(_numbers(ours, labels, source.name, target, strict))
                own.append(labels.base + np.arange(len(numbers[-1])))
            elif ours is not labels and not same_classes:
                kinds = ("categories, and numbers", "numbers, and categories")
                raise OptionError(
                    f"{source.name}: {key!r} has {kinds[labels is None]} in the data of the model. "
                    f"{_REMEDY} If the numbers of the classes agree, give --same-classes "
                    "(same_classes=True in the TrainerConfig)."
                )
        if not numbers:
            continue
        starts = np.array([source.start for source in sources])
        ends = np.cumsum([*map(len, own)])
        tables = np.concatenate(own), np.concatenate(numbers)
        renumbering = Renumbering(key, starts, ends, *tables, key in target, strict)
        if renumbering.is_target or renumbering.changes:
            by_key[key] = renumbering
    return by_key


_REMEDY = "Convert them like the training data."


def _check_kind(key: str, model: Description, source: Source) -> None:
    features = [each.schema.features.get(key) for each in (source.description, model)]
    kind, expected = (
        each and f"{each.dtype} {[*each.shape]}{f' in {each.unit}' * bool(each.unit)}"
        for each in features
    )
    if kind and expected and kind != expected:
        raise OptionError(
            f"{source.name}: {key!r} is {kind}, and {expected} in the data of the model. {_REMEDY}"
        )


def _numbers(
    ours: Labels, labels: Labels, name: str, target: Mapping[str, int], strict: bool
) -> np.ndarray:
    """The model's numbers of the classes of a source; see renumberings."""
    key = ours.key
    if ours.names == labels.names:  # the last ones of the target may have no name
        return ours.base + np.arange(max(ours.count, target.get(key, 0)))
    if any(len(set(each.names)) < each.count for each in (ours, labels)):
        raise OptionError(
            f"{name}: the classes of {key!r} differ from the model's, and some have the same name. "
            f"{_REMEDY}"
        )
    by_name = {each: number for number, each in enumerate(ours.names, ours.base)}
    # true and True are one class, as in a conversion
    numbers = np.array([class_number(by_name, each) for each in labels.names])
    unknown = [labels.names[place] for place in np.flatnonzero(numbers == MISSING)]
    if key in target and unknown and strict:
        raise OptionError(
            f"{name}: {key!r} has the class "
            f"{unknown[0]!r}{f' and {len(unknown) - 1} more' * (len(unknown) > 1)}, which the "
            f"model does not have. Its {ours.count} classes are {_some(ours)}. Leave these "
            "records out in a conversion of their own, or use --mode predict."
        )
    if len(unknown) == labels.count and key not in target:
        log.warning(
            "%s: the model has seen none of the categories of %r, so all of its values count as "
            "missing",
            name,
            key,
        )
    return numbers


def _check_text(model: Description, source: Source) -> None:
    if model.text is None or source.description.text is None:
        return
    ours = model.text.tokenizer.settings()
    settings = source.description.text.tokenizer.settings()
    for setting in {**ours, **settings}:
        if ours.get(setting) != settings.get(setting):
            value, of_model = (repr(each.get(setting))[:_SHOWN] for each in (settings, ours))
            raise OptionError(
                f"{source.name}: its tokenizer has {setting} {value}, and that of the model "
                f"{of_model}, so its tokens mean something else. Convert the texts with the "
                "model's tokenizer."
            )


def _some(labels: Labels) -> str:
    return f"{', '.join(labels.names[:5])}{', ...' if labels.count > 5 else ''}"
