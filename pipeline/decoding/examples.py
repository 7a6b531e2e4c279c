"""Parses a batch of tf.train.Examples into columns, one per feature, without TensorFlow.

Records of one writer have the same keys in the same order, so a batch is parsed field by field:
each step of NumPy handles one field of all records. The order of keys comes from a record and is
checked in every one. Records that differ, and all that are damaged, are decoded one by one, which
finds the reason. Nothing is taken on trust.

Wire format: https://protobuf.dev/programming-guides/encoding/"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding.columns import Columns, Ragged, Slices, merged
from pipeline.decoding.packed_lists import ONE_BYTE, floats, integers
from pipeline.parsing import example_values
from pipeline.shards.example import LIST_TAG, varint
from pipeline.shards.example_decoding import example_keys
from pipeline.shards.schema import Feature
from pipeline.spec import DTYPES

_PADDING = bytes(512)  # after the last record: a step may look beyond its end
_MOST_ORDERS = 3  # of keys, in one batch; other records are decoded one by one
# entries of a record times records: a record of a million keys would cost the batch gigabytes
_MOST_STEPS = 1 << 20
_LONGEST_KEY = 256  # bytes
_TOO_LONG = 1 << 40  # replaces lengths of more than five bytes
_LARGE = 4  # records that exceed the bytes to be examined by this factor are not joined
_LENGTHS = 26  # bytes of an entry before its value, without key and tag: four lengths, four tags


class _Ranges(NamedTuple):
    """Where the values of a feature lie in the bytes of a batch: int64 [n] each."""

    begins: np.ndarray
    sizes: np.ndarray


class _Order:
    """The entries of the feature map in their order, and how they begin up to the values, in words
    of eight bytes.

    heads: what follows the length of an entry. tags: of the list, 0 for a feature that is not
    parsed. An entry whose lengths take one byte each begins with `known + length * moving`, where
    length is that of the entry: each of the others is smaller by what lies between. sizes: int64
    [entries], of these beginnings."""

    def __init__(self, keys: Sequence[bytes], features: Mapping[bytes, Feature]) -> None:
        self.keys = keys
        self.heads = [b"\x0a" + varint(len(key)) + key + b"\x12" for key in keys]
        self.tags = [LIST_TAG[features[key].dtype][0] if key in features else 0 for key in keys]
        tails = [bytes([0, tag, 0, 0x0A, 0]) if tag else b"\0" for tag in self.tags]
        beginnings = [b"\x0a\0" + head + tail for head, tail in zip(self.heads, tails, strict=True)]
        self.sizes = np.array([len(begins) for begins in beginnings], np.int64)
        self.window = _LENGTHS + max(map(len, self.heads), default=0)
        self.width = -(-int(self.sizes.max(initial=0)) // 8)
        known, less, moving, mask = (
            np.zeros((len(keys), 8 * self.width), np.uint8) for _ in range(4)
        )
        for row, (begins, tail) in enumerate(zip(beginnings, tails, strict=True)):
            known[row, : len(begins)] = [*begins]
            mask[row, : len(begins)] = 0xFF
            lengths = np.array([1, *(len(begins) - at for at in (5, 3, 1) if at <= len(tail))])
            moving[row, lengths], less[row, lengths] = 1, lengths - 1
        self.moving = moving.view("<u8")
        self.mask = mask.view("<u8")
        # no byte is borrowed from unless a length is too small
        self.known = known.view("<u8") - less.view("<u8")


class ExampleParser:
    """Parses the features `features` of the records of a batch. Threads may share it.

    wide: all integers are int64. Without it, they are int32 where those of a batch need no more
    than 28 bits, which saves a third of the time of parsing text."""

    def __init__(self, features: Mapping[str, Feature], *, wide: bool = False) -> None:
        self._wide = wide
        self._features = {key.encode(): feature for key, feature in features.items()}
        # Lists of bytes have no packed form.
        self._orders = _MOST_ORDERS * all(
            each.dtype != "bytes" or each.shape == () for each in features.values()
        )
        self._order = _Order((), {})  # of the last batch

    def __call__(self, payloads: Sequence[bytes]) -> Columns:
        """key -> [n, *shape] of integers, float32 or object (bytes), or Ragged; 0, b"" or no values
        if absent.

        Raises SchemaError for a record that is not an Example or does not have the features,
        without naming it."""
        parts = list[tuple[np.ndarray, Columns]]()
        rest = np.arange(len(payloads))
        for _ in range(self._orders):
            alike, columns = self._in_step([payloads[row] for row in rest.tolist()])
            if not columns:
                break
            parts.append((rest[alike], columns))
            rest = rest[~alike]
        if len(rest) or not parts:
            parts.append(
                (rest, self._one_by_one([payloads[row] for row in rest.tolist()], self._features))
            )
        return parts[0][1] if len(parts) == 1 else merged(parts)

    def _in_step(self, payloads: Sequence[bytes]) -> tuple[np.ndarray, Columns]:
        """bool [n]: which records have their keys in the order of the previous batch, or of the
        first record; and their columns.

        No columns if there is no such record, or if any of their values is malformed."""
        if not payloads:
            return np.zeros(0, bool), {}
        text = _text_of(payloads, self._order)
        alike, ranges = _walk(text, self._order)
        if not alike.any():
            keys = example_keys(payloads[0]) or ()  # none if it is not an Example
            few_and_short = (
                len(keys) * len(payloads) <= _MOST_STEPS
                and max(map(len, keys), default=0) <= _LONGEST_KEY
            )
            self._order = order = _Order(keys if few_and_short else (), self._features)
            text = _text_of(payloads, order)
            alike, ranges = _walk(text, order)
        if not alike.any():
            return alike, {}
        present = {key: feature for key, feature in self._features.items() if key in ranges}
        columns = _columns(text, np.flatnonzero(alike), present, ranges, self._wide)
        absent = self._features.keys() - ranges.keys()
        if absent and (columns or not present):
            columns |= self._one_by_one([b""] * int(alike.sum()), absent)
        return alike, columns

    def _one_by_one(self, payloads: Sequence[bytes], keys: Collection[bytes]) -> Columns:
        features = {key: self._features[key] for key in keys}
        records = [example_values(payload, features) for payload in payloads]
        columns = Columns()
        for key, feature in features.items():
            name = key.decode()
            rows = [record[name] for record in records]
            shape: Any = feature.shape
            empty = np.empty(0, DTYPES[feature.dtype])
            if feature.num_values is None:
                lengths = np.fromiter(map(len, rows), np.int64, len(rows))
                columns[name] = Ragged(np.concatenate([empty, *rows]), lengths)
            else:
                columns[name] = np.stack(rows) if rows else empty.reshape(0, *shape)
        return columns


class _Joined:
    """The bytes of all records, one after the other."""

    def __init__(self, payloads: Sequence[bytes], sizes: np.ndarray) -> None:
        self.payloads = payloads
        self.sizes = sizes
        self._begins = np.cumsum(sizes) - sizes
        self.data = np.frombuffer(b"".join([*payloads, _PADDING]), np.uint8)

    def look(self, _entry: int, offsets: np.ndarray) -> np.ndarray:
        """The places in `data` of these offsets into the records."""
        return self._begins + offsets

    def ranges(
        self, rows: np.ndarray, begins: np.ndarray, _sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Bytes that contain these ranges of the records `rows`, and where each begins."""
        return self.data, self._begins[rows] + begins


class _Windows:
    """Only the beginnings of entries, for records that are much larger. Joining photographs takes
    50 times as long as parsing them."""

    def __init__(self, payloads: Sequence[bytes], sizes: np.ndarray, order: _Order) -> None:
        self.payloads = payloads
        self.sizes = sizes
        self._width = order.window
        self._looks = np.zeros((len(order.keys) + 1, len(payloads) * self._width), np.uint8)
        self._begins = np.arange(len(payloads)) * self._width
        self.data = self._looks.ravel()

    def look(self, entry: int, offsets: np.ndarray) -> np.ndarray:
        """See _Joined. entry: the one that begins at these offsets."""
        width = self._width
        windows = [
            payload[at : at + width].ljust(width, b"\0")
            for payload, at in zip(self.payloads, offsets.tolist(), strict=True)
        ]
        self._looks[entry] = np.frombuffer(b"".join(windows), np.uint8)
        return entry * len(self._looks[0]) + self._begins

    def ranges(
        self, rows: np.ndarray, begins: np.ndarray, sizes: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """See _Joined."""
        spans = zip(rows.tolist(), begins.tolist(), (begins + sizes).tolist(), strict=True)
        data = b"".join([self.payloads[row][begin:end] for row, begin, end in spans])
        return np.frombuffer(data, np.uint8), np.cumsum(sizes) - sizes


def _text_of(payloads: Sequence[bytes], order: _Order) -> _Joined | _Windows:
    sizes = np.fromiter(map(len, payloads), np.int64, len(payloads))
    looked_at = (len(order.keys) + 1) * len(payloads) * order.window
    if order.keys and sizes.sum() > _LARGE * looked_at:
        return _Windows(payloads, sizes, order)
    return _Joined(payloads, sizes)


def _walk(text: _Joined | _Windows, order: _Order) -> tuple[np.ndarray, dict[bytes, _Ranges]]:
    """bool [n]: which records have this order; and where the values of their features with a tag
    are."""
    if ranges := _as_first(text, order):
        return np.ones(len(text.sizes), bool), ranges
    data = text.data
    entries = len(order.keys)
    at = text.look(entries, np.zeros_like(text.sizes))
    size, first = _lengths(data, at + 1)
    offset = first - at
    alike: Any = (offset + size == text.sizes) & (data[at] == 0x0A) & (entries > 0)
    if not alike.any():
        return alike, {}
    offsets, starts, lengths = (np.empty((entries, len(at)), np.int64) for _ in range(3))
    for row in range(entries):
        offsets[row] = offset
        starts[row] = at = text.look(row, offset)
        size = data[1:].take(at, mode="clip")
        if size.max() < ONE_BYTE:
            lengths[row] = size
            offset = offset + size + 2
        else:
            lengths[row] = 0  # not short
            size, end = _lengths(data, at + 1)
            offset = offset + size + (end - at)
    alike &= offset == text.sizes
    fits = _begin_as(data, starts, lengths, order)
    short: Any = fits.all(1)
    places = dict[bytes, _Ranges]()
    for row, (key, tag) in enumerate(zip(order.keys, order.tags, strict=True)):
        if short[row]:
            values = starts[row] + order.sizes[row]
            size = lengths[row] - (order.sizes[row] - 2)
        else:
            fitting, values, size = _long_entry(data, starts[row], order.heads[row], tag)
            alike &= fitting
        if tag:
            places[key] = _Ranges(values - starts[row] + offsets[row], size)
    ranges = {key: _Ranges(begins[alike], sizes[alike]) for key, (begins, sizes) in places.items()}
    return alike, ranges


def _as_first(text: _Joined | _Windows, order: _Order) -> dict[bytes, _Ranges]:
    """Where the values are, if all records differ from the first one in nothing else, as rows of a
    table do; {} if one does. Takes a tenth of the time."""
    count = len(text.sizes)
    if count < 2 or isinstance(text, _Windows) or (text.sizes != text.sizes[0]).any():
        return {}
    alike, places = _walk(_Joined(text.payloads[:1], text.sizes[:1]), order)
    if not alike.all():
        return {}
    mask = np.full(text.sizes[0], 0xFF, np.uint8)
    for begins, sizes in places.values():
        mask[begins[0] : begins[0] + sizes[0]] = 0
    records = text.data[: count * len(mask)].reshape(count, -1)
    if ((records ^ records[0]) & mask).any():
        return {}
    return {key: _Ranges(*(np.repeat(each, count) for each in of)) for key, of in places.items()}


def _begin_as(
    data: np.ndarray, starts: np.ndarray, lengths: np.ndarray, order: _Order
) -> np.ndarray:
    """bool [entries, n]: whether the entries at `starts`, of these lengths, begin as in the
    order."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    fits: Any = lengths >= order.sizes[:, None] - 2
    for word in range(order.width):
        bits = words[np.minimum(starts + 8 * word, len(words) - 1)] & order.mask[:, word, None]
        fits &= (
            bits
            == order.known[:, word, None] + lengths.view(np.uint64) * order.moving[:, word, None]
        )
    return fits


def _long_entry(
    data: np.ndarray, at: np.ndarray, head: bytes, tag: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Whether entries of any length at `at` have this head and tag, where their values begin, and
    their size."""
    fits = data.take(at, mode="clip") == 0x0A
    size, at = _lengths(data, at + 1)
    stop = at + size
    fits &= (data.take(at[:, None] + np.arange(len(head)), mode="clip") == [*head]).all(1)
    size, at = _lengths(data, at + len(head))
    fits &= at + size == stop
    if not tag:
        return fits, at, size
    fits &= data.take(at, mode="clip") == tag
    size, at = _lengths(data, at + 1)
    fits &= at + size == stop
    empty = size == 0
    packed = data.take(at, mode="clip") == 0x0A
    size, at = _lengths(data, at + 1)
    fits &= empty | (packed & (at + size == stop))
    return fits, np.where(empty, stop, at), np.where(empty, 0, size)


def _lengths(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The varints at these places, of up to five bytes, and where they end."""
    byte = data.take(at, mode="clip")
    number = (byte & 0x7F).astype(np.int64)
    more = byte >= ONE_BYTE
    shift = 7
    while more.any() and shift < 35:
        at = at + more
        byte = data.take(at, mode="clip")
        number |= np.where(more, (byte & 0x7F).astype(np.int64) << shift, 0)
        more &= byte >= ONE_BYTE
        shift += 7
    number[more] = _TOO_LONG
    return number, at + 1


def _columns(
    text: _Joined | _Windows,
    rows: np.ndarray,
    features: Mapping[bytes, Feature],
    ranges: Mapping[bytes, _Ranges],
    wide: bool,
) -> Columns:
    """The columns of these features of the records `rows`; {} if a list is cut or has the wrong
    number of values."""
    columns = Columns()
    for key, feature in features.items():
        if feature.dtype == "bytes":
            columns[key.decode()] = Slices(text.payloads, rows, *ranges[key])
    for keys in _together(features):
        feature = features[keys[0]]
        begins = np.concatenate([ranges[key].begins for key in keys])
        sizes = np.concatenate([ranges[key].sizes for key in keys])
        numbers = floats if feature.dtype == "float32" else integers
        values, counts = numbers(*text.ranges(np.tile(rows, len(keys)), begins, sizes), sizes)
        if counts is None or (
            feature.num_values is not None and (counts != feature.num_values).any()
        ):
            return {}
        if wide and values.dtype == np.int32:
            values = values.astype(np.int64)
        if feature.num_values is None:
            columns[keys[0].decode()] = Ragged(values, counts)
        else:
            shape: Any = feature.shape
            table = values.reshape(len(keys), len(rows), *shape)
            columns |= zip((key.decode() for key in keys), table, strict=True)
    return columns


def _together(features: Mapping[bytes, Feature]) -> Iterable[Sequence[bytes]]:
    """The keys of numbers parsed in one step: all single ones of a dtype, and each list."""
    groups = defaultdict[Any, list[bytes]](list)
    for key, feature in features.items():
        if feature.dtype != "bytes":
            groups[feature.dtype if feature.shape == () else key].append(key)
    return groups.values()
