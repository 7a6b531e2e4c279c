"""The numbers in many packed lists: varints and float32 as protobuf writes them.

Wire format: https://protobuf.dev/programming-guides/encoding/"""

import numpy as np

ONE_BYTE = 128  # a varint below it takes one
_FEW_BYTES = 32  # per list: fewer are collected by index, more as slices


def floats(
    data: np.ndarray, begins: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """The values in these ranges, float32, and how many are in each: None if one is cut."""
    if (sizes % 4).any():
        return data, None
    return _joined(data, begins, sizes).view("<f4"), sizes // 4


def integers(
    data: np.ndarray, begins: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """The varints in these ranges, and how many are in each: None if one is cut."""
    packed = _joined(data, begins, sizes)
    last = packed < ONE_BYTE
    stops = np.cumsum(sizes)
    if not last[stops[sizes > 0] - 1].all():
        return data, None
    if last.all():
        return packed.astype(np.int32), sizes
    ends = np.flatnonzero(last)
    firsts = np.zeros_like(ends)
    np.add(ends[:-1], 1, out=firsts[1:])
    longest = int((ends - firsts).max()) + 1
    padded = np.concatenate([packed, np.zeros(16, np.uint8)])
    numbers = _varints(padded, firsts, np.uint32 if longest <= 4 else np.uint64)
    counts = np.diff(np.searchsorted(ends, stops), prepend=0)
    return numbers, counts if longest <= 10 else None


def _varints(data: np.ndarray, firsts: np.ndarray, word: type[np.unsignedinteger]) -> np.ndarray:
    """The varints that begin at these places, as signed integers: up to four bytes in uint32, ten
    in uint64."""
    size = np.dtype(word).itemsize
    words = np.ndarray((len(data) - size,), np.dtype(word).newbyteorder("<"), data, strides=(1,))
    words = words.take(firsts)  # a third of the time of words[firsts]
    ends = ~words & word(0x8080808080808080 >> 8 * (8 - size))  # set in bytes that end a number
    longer = np.flatnonzero(ends == 0)
    words &= ends ^ (ends - word(1))  # up to the first of them
    numbers = words & word(0x7F)
    for place in range(1, size):
        np.right_shift(words, word(place), out=ends)
        ends &= word(0x7F << 7 * place)
        numbers |= ends
    if len(longer):
        ninth, tenth = (data[firsts[longer] + place].astype(np.uint64) for place in (8, 9))
        tenth[ninth < ONE_BYTE] = 0  # the next number's
        numbers[longer] |= (ninth & word(0x7F)) << word(56) | (tenth & word(1)) << word(63)
    return numbers.view(np.dtype(f"i{size}"))


def _joined(data: np.ndarray, begins: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The bytes of all ranges, one after the other."""
    total = int(sizes.sum())
    if total > _FEW_BYTES * len(sizes):
        return np.concatenate(
            [data[at:to] for at, to in zip(begins.tolist(), (begins + sizes).tolist(), strict=True)]
        )
    return data.take(np.repeat(begins - np.cumsum(sizes) + sizes, sizes) + np.arange(total))
