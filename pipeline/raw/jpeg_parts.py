"""JPEGs of a part of another one, cut out at restart markers: found by the segments of a JPEG,
without decoding it."""

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

END = b"\xff\xd9"
_FRAME_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # SOF0..15 without DHT, JPG, DAC
# RSTn and TEM have no length; nor has a stuffed zero, which is not a marker: libjpeg skips it
_BARE_MARKERS = frozenset(range(0xD0, 0xD8)) | {0x00, 0x01}
_RESTART, SCAN, _INTERVAL = 0xD0, 0xDA, 0xDD  # RST0, SOS, DRI
_BASELINE = frozenset((0xC0, 0xC1))  # and extended; the others have several scans
_MOST_KEPT = 0.9


def segments(data: bytes) -> Iterator[tuple[int, int]]:
    """The markers in turn, and the place after each: that of the length of its segment, if it has
    one. Raises IndexError or struct.error where the data ends."""
    position = 2
    while True:
        while data[position] != 0xFF:
            position += 1
        while data[position] == 0xFF:  # fill bytes
            position += 1
        marker = data[position]
        position += 1
        yield marker, position
        if marker not in _BARE_MARKERS:
            position += struct.unpack_from(">H", data, position)[0]


def frames(data: bytes) -> Iterator[int]:
    """Where the heights of images begin; there should be one. Raises as segments does."""
    return (at + 3 for marker, at in segments(data) if marker in _FRAME_MARKERS)


def unit(data: bytes, frame: int) -> tuple[int, int]:
    """Height and width of the pixels in which all components take turns. frame: see frames."""
    components = data[frame + 4]
    # a single component takes no turns, whatever its factors are
    factors = data[frame + 6 :][: 3 * components : 3] if components > 1 else b"\x11"
    # 1 where damage makes it 0
    return 8 * max((1, *(f & 15 for f in factors))), 8 * max((1, *(f >> 4 for f in factors)))


class Part(NamedTuple):
    """A JPEG of a part of another one. size: its height and width. top, left: pixels of the other
    one that are above it and to its left."""

    data: bytes
    size: tuple[int, int]
    top: int
    left: int


class _Grid(NamedTuple):
    """Where a JPEG may be cut. frame, scan: the places of its height and of its pixels. size: its
    height and width. cell: those of what lies between two restart markers. margin: the width of a
    unit; a cell is one or more units wide."""

    frame: int
    scan: int
    size: tuple[int, int]
    cell: tuple[int, int]
    margin: int


def part_of(data: bytes, window: tuple[int, int, int, int]) -> Part | None:
    """A JPEG that decodes to the same pixels in the window (y, x, height, width), cut out at
    restart markers.

    None if that saves little, and for a JPEG that cannot be cut: a progressive one, and one whose
    markers are not below each other, or are damaged. Damage outside of the part is not noticed.
    Takes about 50 us, half of it to find the markers."""
    grid = grid_of(data)
    if grid is None or not data.endswith(END):
        return None
    y, x, h, w = window
    (height, width), (cell_h, cell_w) = grid.size, grid.cell
    rows, columns = -(-height // cell_h), -(-width // cell_w)
    # with the unit around the window, from which its chroma is interpolated
    top, bottom = max(y // cell_h - 1, 0), min(-(-(y + h) // cell_h) + 1, rows)
    left = max((x - grid.margin) // cell_w, 0)
    right = min(-(-(x + w + grid.margin) // cell_w), columns)
    if (bottom - top) * (right - left) > _MOST_KEPT * rows * columns:
        return None
    array = np.frombuffer(data, np.uint8)
    places = grid.scan + np.flatnonzero(array[grid.scan : -1] == 0xFF)
    markers = places[array[places + 1] & 0xF8 == _RESTART]
    numbers = np.arange(len(markers)) & 7
    # the header may state any number of rows
    if len(markers) != rows * columns - 1 or (array[markers + 1] & 7 != numbers).any():
        return None
    begins = np.insert(markers + 2, 0, grid.scan).reshape(rows, columns)[top:bottom, left:right]
    ends = np.append(markers + 2, len(data)).reshape(rows, columns)[top:bottom, left:right]
    head = bytearray(data[: grid.scan])
    size = min(height, bottom * cell_h) - top * cell_h, min(width, right * cell_w) - left * cell_w
    struct.pack_into(">HH", head, grid.frame, *size)
    pairs = zip(begins[:, 0].tolist(), ends[:, -1].tolist(), strict=True)
    part = bytearray().join([head, *(data[begin:end] for begin, end in pairs)])
    after = grid.scan + np.cumsum(ends - begins)
    np.frombuffer(part, np.uint8)[after - 1] = _RESTART + (np.arange(len(after)) & 7)
    part[-2:] = END
    return Part(bytes(part), size, top * cell_h, left * cell_w)


def grid_of(data: bytes) -> _Grid | None:
    """None if it cannot be cut."""
    places = dict[int, int]()
    try:
        for marker, at in segments(data):
            places[marker] = at
            if marker == SCAN:
                break
        frames = _FRAME_MARKERS & places.keys()
        if len(frames) != 1 or not frames <= _BASELINE or _INTERVAL not in places:
            return None
        frame = 3 + places[min(frames)]
        height, width, components = struct.unpack_from(">HHB", data, frame)
        (interval,) = struct.unpack_from(">H", data, places[_INTERVAL] + 2)
        length, of_scan = struct.unpack_from(">HB", data, places[SCAN])
        unit_h, unit_w = unit(data, frame)
    except (IndexError, struct.error):
        return None
    if not interval or of_scan != components or -(-width // unit_w) % interval:
        return None
    scan = places[SCAN] + length
    return _Grid(frame, scan, (height, width), (unit_h, interval * unit_w), unit_w)
