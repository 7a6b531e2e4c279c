"""JSON objects with a checksum of themselves, so that a changed bit is never taken for a value.

The manifest, and what a conversion writes for its own later steps: claims, receipts, ledger and verdicts."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.shards.record import crc32c
from pipeline.shards.typed_json import JsonFile

__all__ = ["CHECKSUM", "checksum_of", "sealed", "sealed_line", "unsealed"]

CHECKSUM = "checksum"  # the field; what version 0.1 wrote has none, but for the manifest


def checksum_of(fields: Mapping[str, Any]) -> str:
    """8 hex digits: the crc32c of all other fields, however the file is laid out."""
    covered = {name: value for name, value in fields.items() if name != CHECKSUM}
    return f"{crc32c(json.dumps(covered, sort_keys=True, separators=(',', ':')).encode()):08x}"


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with their checksum."""
    return {**fields, CHECKSUM: checksum_of(fields)}


def sealed_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON, with its checksum."""
    return (json.dumps(sealed(fields)) + "\n").encode()


def unsealed(file: JsonFile, data: bytes) -> tuple[dict[str, Any], bool]:
    """The fields of one JSON object without their checksum, and whether they had one. Raises file.error."""
    fields = file.read(data, dict[str, Any])
    if CHECKSUM not in fields:
        return fields, False
    if fields[CHECKSUM] != (there := checksum_of(fields)):
        raise file.misfit(f"it has the checksum {fields[CHECKSUM]!r}, its fields give {there!r}.")
    return {name: value for name, value in fields.items() if name != CHECKSUM}, True
