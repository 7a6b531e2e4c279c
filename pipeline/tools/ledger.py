"""Checks the ledger of a split for verify: users repair raw data by it."""

from dataclasses import dataclass

from pipeline.errors import ShardError
from pipeline.shards.naming import rejects_file
from pipeline.shards.sealed import unsealed
from pipeline.shards.typed_json import Count, JsonFile
from pipeline.storage.storage import Storage, join

__all__ = ["ledger_problem"]


@dataclass(frozen=True)
class _Line:
    """The entry of a rejected record."""

    key: str
    uri: str
    offset: Count
    stage: str
    error: str


def ledger_problem(storage: Storage, directory: str, split: str, rejected: int) -> str:
    """Why the ledger is not the one that the conversion wrote, with one line per rejected record; "" if it is.

    Indexed files have no ledger."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return f"is missing, with its {rejected:,} lines" if rejected else ""
    lines = storage.read(path).splitlines()
    for number, line in enumerate(lines, start=1):
        file = JsonFile(f"line {number}", ShardError, "")
        try:
            file.typed(unsealed(file, line)[0], _Line)
        except ShardError as e:
            return str(e)
    return "" if len(lines) == rejected else f"has {len(lines):,} lines, the manifest says {rejected:,}"
