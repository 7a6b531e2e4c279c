"""Parses split selections such as "train[:90%]+validation[-500:]", in TFDS's notation, for open_dataset.

Text and numbers only."""

import re
from dataclasses import dataclass

from pipeline.errors import EmptySplitError, OptionError

__all__ = ["Selection", "parse_selections"]

_PART = re.compile(r"(?P<split>[^\[\]+]*?)(?:\[(?P<first>[^\[\]:]*):(?P<stop>[^\[\]:]*)\])?")
_EXAMPLES = "'train', 'train[:90%]', 'train[1000:]', 'train[:50%]+validation'"


@dataclass(frozen=True)
class _Bound:
    """A position in a split: a record number or a percentage; negative values count from the end."""

    number: int
    percent: bool

    def of(self, num_records: int) -> int:
        # TFDS's own rounding, so that both select the same records.
        at = round(self.number * num_records / 100.0) if self.percent else self.number
        return at + num_records if self.number < 0 else at


@dataclass(frozen=True)
class Selection:
    """Consecutive records of one split."""

    split: str
    text: str
    first: _Bound | None = None
    stop: _Bound | None = None

    def of(self, num_records: int) -> range:
        """The numbers of the selected records. OptionError beyond the end, EmptySplitError if there are none."""
        first = self.first.of(num_records) if self.first else 0
        stop = self.stop.of(num_records) if self.stop else num_records
        if min(first, stop) < 0 or max(first, stop) > num_records:
            raise OptionError(f"{self.text!r} is out of range: the split has {num_records} records.")
        if stop <= first:
            raise EmptySplitError(f"{self.text!r} selects none of {num_records} records: {first} to {stop}.")
        return range(first, stop)


def parse_selections(text: str) -> list[Selection]:
    """The selections in a text, in order. Raises OptionError for a part that is not in the notation."""
    return [_parsed(part.strip(), text) for part in text.split("+")]


def _parsed(part: str, text: str) -> Selection:
    match = _PART.fullmatch(part)
    if not match or not part:
        raise OptionError(f"split={text!r}: {part!r} is not a split or a part of one. Examples: {_EXAMPLES}.")
    bounds = [_bound(match[side], text) if match[side] else None for side in ("first", "stop")]
    return Selection(match["split"].strip(), part, *bounds)


def _bound(written: str, text: str) -> _Bound | None:
    match = re.fullmatch(r"\s*(-?\d+)\s*(%?)\s*", written)
    if not written.strip():
        return None
    if not match or (match[2] and abs(int(match[1])) > 100):
        raise OptionError(
            f"split={text!r}: {written.strip()!r} is not a position in a split. Give an integer, or -100% to "
            f"100%. Examples: {_EXAMPLES}."
        )
    return _Bound(int(match[1]), match[2] == "%")
