"""The ledger of rejected records, by which users repair raw data."""

from dataclasses import dataclass

from pipeline.errors import ShardError
from pipeline.shards.naming import rejects_file
from pipeline.shards.typed_json import Count, JsonFile, read_sealed
from pipeline.storage.storage import Storage, join


@dataclass(frozen=True)
class LedgerLine:
    """The entry of a rejected record."""

    key: str
    uri: str
    offset: Count
    stage: str  # scan | convert
    error: str


def ledger_problem(storage: Storage, directory: str, split: str, rejected: int) -> str:
    """Why the ledger is not the one that the conversion wrote, with one line per rejected record;
    "" if it is.

    Indexed files have no ledger."""
    path = join(directory, rejects_file(split))
    if not storage.exists(path):
        return f"is missing, with its {rejected:,} lines" if rejected else ""
    lines = storage.read(path).splitlines()
    try:
        for number, line in enumerate(lines, start=1):
            read_sealed(JsonFile(f"line {number}", ShardError, ""), line, LedgerLine)
    except ShardError as e:
        return str(e)
    if len(lines) != rejected:
        return f"has {len(lines):,} lines, the manifest says {rejected:,}"
    return ""
