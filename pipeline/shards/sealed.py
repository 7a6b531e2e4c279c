"""JSON objects that contain their own checksum, so that a changed bit is never read as a value.

Used for the manifest, and for what a conversion writes for its later steps: claims, receipts, ledger, verdicts."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.shards.record import crc32c
from pipeline.shards.typed_json import JsonFile

__all__ = ["CHECKSUM", "sealed", "sealed_line", "unsealed"]

CHECKSUM = "checksum"  # the field; of the files that version 0.1 wrote, only manifests have it


def _checksum(fields: Mapping[str, Any]) -> str:
    """8 hex digits: the crc32c of all other fields, whatever the layout of the file."""
    covered = {name: value for name, value in fields.items() if name != CHECKSUM}
    return f"{crc32c(json.dumps(covered, sort_keys=True, separators=(',', ':')).encode()):08x}"


def sealed(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with their checksum."""
    return {**fields, CHECKSUM: _checksum(fields)}


def sealed_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON, with its checksum."""
    return (json.dumps(sealed(fields)) + "\n").encode()


def unsealed(file: JsonFile, data: bytes, hint: str = "") -> tuple[dict[str, Any], bool]:
    """The fields of a JSON object without their checksum, and whether there was one. Raises file.error.

    hint: added to the error for a wrong checksum."""
    fields = file.read(data, dict[str, Any])
    if CHECKSUM not in fields:
        return fields, False
    expected, found = _checksum(fields), fields.pop(CHECKSUM)
    if found != expected:
        raise file.misfit(f"its checksum is {found!r}, but that of its fields is {expected!r}{hint}.")
    return fields, True
