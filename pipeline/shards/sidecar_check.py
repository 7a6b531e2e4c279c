"""Compares the files for TFDS with the manifest by their meaning, whatever their layout."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.errors import StorageError, printable
from pipeline.shards.manifest import Manifest
from pipeline.shards.sidecars import names_in, sidecar_texts
from pipeline.shards.typed_json import once
from pipeline.storage.storage import Storage, join

SHOWN = 80  # characters of a value


def sidecar_problems(storage: Storage, manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(path, problem) of each file that is missing or would give TFDS other facts than the
    manifest."""
    for name, text in sorted(sidecar_texts(manifest).items()):
        path = join(manifest.directory, name)
        try:
            content = storage.read(path).decode()
            what = (_json_problem if name.endswith(".json") else _names_problem)(content, text)
        except StorageError as e:
            what = str(e).removeprefix(f"{path} ")
        except UnicodeDecodeError as e:
            what = f"is not UTF-8: {e}"
        if what:
            yield path, what


def _json_problem(content: str, expected: str) -> str:
    try:
        # Depending on the file, TFDS rejects an object with a repeated key or takes the last value.
        parsed = json.loads(content, object_pairs_hook=once)
        return _summary(list(_differences(parsed, json.loads(expected), "")))
    except (ValueError, RecursionError) as e:
        return f"is not JSON as TFDS reads it: {printable(str(e))}"


def _differences(actual: Any, ours: Any, path: str) -> Iterator[str]:
    """The differences of two JSON values, including their types: True is not 1."""
    if isinstance(actual, dict) and isinstance(ours, dict):
        for key in sorted(actual.keys() | ours.keys()):
            at = f"{path}.{printable(key)}".lstrip(".")
            if key not in ours:
                yield f"{at} is {_shown(actual[key])}, the manifest has no such field"
            elif key not in actual:
                yield f"{at} is missing, the manifest says {_shown(ours[key])}"
            else:
                yield from _differences(actual[key], ours[key], at)
    elif isinstance(actual, list) and isinstance(ours, list) and len(actual) == len(ours):
        for number, pair in enumerate(zip(actual, ours, strict=True)):
            yield from _differences(*pair, f"{path}[{number}]")
    elif json.dumps(actual, sort_keys=True) != json.dumps(ours, sort_keys=True):
        yield f"{path or 'the file'} is {_shown(actual)}, the manifest says {_shown(ours)}"


def _names_problem(content: str, expected: str) -> str:
    actual = names_in(content)
    ours = names_in(expected)
    if len(actual) != len(ours):
        return f"has {len(actual):,} names, the manifest has {len(ours):,}"
    return _summary(
        [
            f"name {number} is {_shown(name)}, the manifest says {_shown(due)}"
            for number, (name, due) in enumerate(zip(actual, ours, strict=True))
            if name != due
        ]
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _summary(differences: Sequence[str]) -> str:
    more = f" ({len(differences) - 1:,} more differences)" if len(differences) > 1 else ""
    return differences[0] + more if differences else ""
