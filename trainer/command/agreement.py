"""How predictions agree with labels: one line about the records that have a `class` and a `label`."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

__all__ = ["Agreement"]

CONFUSIONS_NAMED = 3


class Agreement:
    """Counts the records of predictions.jsonl whose class is their label, and what the others are taken for.

    Names are compared if there are names, else numbers. Leaves out records that lack one of the two."""

    def __init__(self) -> None:
        self._right, self._wrong = 0, Counter[tuple[str, str]]()

    def add(self, record: Mapping[str, Any]) -> None:
        """Counts a record, as it is written."""
        names = ("class_name", "label_name")
        keys = names if record.keys() >= set(names) else ("class", "label")
        predicted, label = (record.get(key) for key in keys)
        if not all(isinstance(value, int | str) for value in (predicted, label)):
            return
        if predicted == label:
            self._right += 1
        else:
            self._wrong[str(label), str(predicted)] += 1

    def __str__(self) -> str:
        """Begins with a colon; empty if no record counted."""
        wrong = self._wrong.total()
        if not self._right + wrong:
            return ""
        text = f": {self._right} agree with their label, {wrong} do not"
        if not wrong:
            return text
        most = ", ".join(
            f"{label} as {predicted} ({count})"
            for (label, predicted), count in self._wrong.most_common(CONFUSIONS_NAMED)
        )
        return f"{text}; most often {most}"
