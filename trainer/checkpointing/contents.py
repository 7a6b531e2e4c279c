"""What a checkpoint says of itself: a page of JSON beside the arrays, under a checksum of its own.

Who lists checkpoints reads it without jax: no more than our own storage needs."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pipeline.shards.errors import CheckpointError, StorageError
from pipeline.shards.record import crc32c
from pipeline.shards.storage import Storage, join
from pipeline.shards.typed_json import JsonFile

__all__ = ["CONTENTS", "changes", "contents_path", "read_contents", "sealed", "versions"]

CONTENTS = "contents"  # Orbax's item, so a directory of the checkpoint
FORMAT = 1
_SEAL = "crc32c"
_PACKAGES = ("infeed", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy")


@dataclass(frozen=True)
class _Head:
    """What pages of all formats have."""

    format: int
    versions: Mapping[str, str]


def versions() -> dict[str, str]:
    """Those of Python and of all libraries that the numbers of a training depend on."""
    return {"python": platform.python_version()} | {name: _version(name) for name in _PACKAGES}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def sealed(contents: Mapping[str, Any]) -> dict[str, Any]:
    """The page to write: `contents` as JSON has it, with the format's number and a checksum of all the rest."""
    page = json.loads(json.dumps({"format": FORMAT} | dict(contents)))
    return page | {_SEAL: _checksum(page)}


def _checksum(page: Mapping[str, Any]) -> int:
    rest = {name: value for name, value in page.items() if name != _SEAL}
    return crc32c(json.dumps(rest, sort_keys=True).encode())


def contents_path(directory: str, step: int) -> str:
    """The file of a step's page, in a directory of checkpoints."""
    return join(directory, f"{step}/{CONTENTS}/metadata")


def read_contents(storage: Storage, directory: str, step: int) -> dict[str, Any]:
    """A step's page. CheckpointError, naming the file, where it is missing or not what was written."""
    path = contents_path(directory, step)
    try:
        data = storage.read(path)
    except StorageError as error:
        if storage.exists(path):
            raise
        raise CheckpointError(f"{path} is missing: the checkpoint is damaged, or of another program.") from error
    file = JsonFile(path, CheckpointError, "It is damaged: copy the checkpoint again, or go on from another step.")
    page = file.parse(data)
    if not isinstance(page, dict) or page.get(_SEAL) != _checksum(page):
        raise CheckpointError(f"{path} is damaged: it does not have the checksum that it was written with.")
    head = file.typed({name: page[name] for name in ("format", "versions") if name in page}, _Head)
    if head.format != FORMAT:
        raise CheckpointError(
            f"{path} has format {head.format}; this version of infeed reads {FORMAT}. Use the version that wrote "
            f"it: {head.versions.get('infeed', 'unknown')}."
        )
    return page


def changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What is another now, one text each: "name then -> now"."""
    now = json.loads(json.dumps(now))
    return [f"{name} {then.get(name)!r} -> {now[name]!r}" for name in now if then.get(name) != now[name]]
