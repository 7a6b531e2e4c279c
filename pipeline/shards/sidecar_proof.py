"""Compares the files for TFDS with the manifest, by their meaning, whatever their layout; and checks the ledger of a
split, by which users repair raw data. For the split verifier."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ShardError, StorageError, printable
from pipeline.shards.manifest import INDEX_WRITER, Manifest
from pipeline.shards.naming import rejects_file
from pipeline.shards.sidecars import INFO_FILE, LATER_FIELDS, sidecar_texts
from pipeline.shards.typed_json import Count, JsonFile, once, unsealed
from pipeline.storage.storage import Storage, join

SHOWN = 80  # characters of a value


def has_sidecars(manifest: Manifest) -> bool:
    """Whether a conversion by infeed wrote the manifest, and so these files too."""
    return manifest.writer.startswith("infeed") and not manifest.writer.startswith(INDEX_WRITER)


def sidecar_problems(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(path, problem) of each file that is missing or would give TFDS other facts than the manifest."""
    for name, text in sorted(sidecar_texts(manifest).items()):
        path = join(manifest.directory, name)
        try:
            found = storage.read(path).decode()
            early = name == INFO_FILE and not manifest.schema.tfds  # may lack LATER_FIELDS
            what = _json_problem(found, text, early) if name.endswith(".json") else _names_problem(found, text)
        except StorageError as e:
            what = str(e).removeprefix(f"{path} ")
        except UnicodeDecodeError as e:
            what = f"is not UTF-8: {e}"
        if what:
            yield path, what


def _json_problem(found: str, expected: str, early: bool) -> str:
    ours = json.loads(expected)
    try:
        # Depending on the file, TFDS rejects an object with a repeated key or takes the last value.
        theirs = json.loads(found, object_pairs_hook=once)
        if early and isinstance(theirs, dict) and not any(field in theirs for field in LATER_FIELDS):
            ours = {key: value for key, value in ours.items() if key not in LATER_FIELDS}
        return _summary(list(_differences(theirs, ours, "")))
    except (ValueError, RecursionError) as e:
        return f"is not JSON as TFDS reads it: {printable(str(e))}"


def _differences(theirs: Any, ours: Any, path: str) -> Iterator[str]:
    """The differences of two JSON values, including their types: True is not 1."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            at = f"{path}.{printable(key)}".lstrip(".")
            if key not in ours:
                yield f"{at} is {_shown(theirs[key])}, the manifest has no such field"
            elif key not in theirs:
                yield f"{at} is missing, the manifest says {_shown(ours[key])}"
            else:
                yield from _differences(theirs[key], ours[key], at)
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        for number, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif json.dumps(theirs, sort_keys=True) != json.dumps(ours, sort_keys=True):
        yield f"{path or 'the file'} is {_shown(theirs)}, the manifest says {_shown(ours)}"


def _names_problem(found: str, expected: str) -> str:
    """TFDS ignores blank lines, and white space around a name."""
    theirs, ours = _names(found), _names(expected)
    differ = [number for number, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]]
    if len(theirs) != len(ours):
        return f"has {len(theirs):,} names, the manifest has {len(ours):,}"
    return _summary([f"name {i} is {_shown(theirs[i])}, the manifest says {_shown(ours[i])}" for i in differ])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split("\n") if name.strip()]


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _summary(differences: Sequence[str]) -> str:
    more = f" ({len(differences) - 1:,} more differences)" if len(differences) > 1 else ""
    return differences[0] + more if differences else ""


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
