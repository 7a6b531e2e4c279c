"""What is wrong with the ledger of a split: verify asks, because a user who repairs raw data goes by it."""

from collections.abc import Mapping
from typing import Any

from pipeline.shards.naming import rejects_file
from pipeline.shards.sealed import unsealed
from pipeline.shards.storage import Storage, join

__all__ = ["ledger_problem"]

_TYPES = {"key": str, "uri": str, "offset": int, "stage": str, "error": str}


def ledger_problem(storage: Storage, directory: str, split: str, rejected: int) -> str:
    """Why the ledger is not the one that the conversion wrote, with a line for each rejected record; "" if it is.

    Where shards were found, not converted, there is none."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return f"is missing, with its {rejected:,} lines" if rejected else ""
    lines = storage.read(path).splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            _check(unsealed(line)[0])
        except ValueError as e:
            return f"line {number}: {e}"
    return "" if len(lines) == rejected else f"has {len(lines):,} lines, the manifest says {rejected:,}"


def _check(fields: Mapping[str, Any]) -> None:
    if fields.keys() != _TYPES.keys():
        raise ValueError(f"it has the fields {', '.join(fields)} instead of {', '.join(_TYPES)}")
    for name, kind in _TYPES.items():
        if type(fields[name]) is not kind:
            raise ValueError(f"its {name!r} is a {type(fields[name]).__name__} instead of a {kind.__name__}")
