"""Mutants of the sidecars and the index of a conversion: flipped bits, cuts, other types. For the suite and .ci/sweep.

None may change what TFDS or our readers find without verify's notice, end in a traceback, or outlast the advice."""

import contextlib
import copy
import io
import json
import random
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds

from pipeline.errors import InfeedError
from pipeline.shards.record import crc32c
from pipeline.shards.split_index import decode_rows, encode_index
from pipeline.verify import main as verify_main

VALUES = (None, True, 0, -1, 1e300, float("nan"), "", "0", "train", "\u202e", [], {}, ["1"], {"a": 1}, 2**70)
ARRAYS = (np.zeros(3, "<u4"), np.zeros((3, 3), "<u4"), np.zeros((3, 2)), np.zeros((3, 2), "<i4"), np.array("text"))


@dataclass(frozen=True)
class Mutant:
    """Files as they are after it."""

    how: str
    files: dict[Path, bytes]

    def __str__(self) -> str:
        return f"{', '.join(path.name for path in self.files)}: {self.how}"


def mutants(directory: Path, seed: int) -> Iterator[Mutant]:
    """Endless: of each file in turn, of each kind that it can have."""
    rng = random.Random(seed)
    sidecars = [*directory.glob("*.json"), *directory.glob("*.labels.txt")]
    sidecars = sorted(path for path in sidecars if path.name != "manifest.json")
    whole = {path: path.read_bytes() for path in (*sidecars, *sorted(directory.glob("_index/*.npy")))}
    while True:
        for path, data in whole.items():
            for change in (_flip, _cut, _other):
                how, changed = change(path, data, rng)
                if changed == data:
                    continue
                yield Mutant(how, {path: changed})
                if path.suffix == ".npy":
                    yield _signed(directory, path, how, changed)


def _flip(path: Path, data: bytes, rng: random.Random) -> tuple[str, bytes]:
    del path
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    return f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _cut(path: Path, data: bytes, rng: random.Random) -> tuple[str, bytes]:
    del path
    at = rng.randrange(len(data))
    return f"cut at byte {at}", data[:at]


def _other(path: Path, data: bytes, rng: random.Random) -> tuple[str, bytes]:
    if path.suffix == ".json":
        return _other_json(data, rng)
    if path.suffix == ".txt":
        return _other_lines(data, rng)
    array = rng.choice(ARRAYS)
    buffer = io.BytesIO()
    if rng.random() < 0.3:
        np.savez(buffer, array)
    else:
        np.save(buffer, array)
    return f"array {array.dtype} {array.shape}", buffer.getvalue()


def _other_json(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    tree = json.loads(data)
    places = list(_places(tree))
    parent, key = rng.choice(places)
    old = parent[key]
    kind = rng.choice(["value", "value", "lost", "twice", "renamed", "added"])
    if kind == "value":
        parent[key] = rng.choice(VALUES)
    elif kind == "lost":
        del parent[key]
    elif isinstance(parent, list):
        parent.insert(0, copy.deepcopy(old))
    elif kind == "renamed":
        parent[f"{key}_"] = parent.pop(key)
    else:
        parent[rng.choice(["description", "optional", "label"])] = rng.choice(VALUES)
    return f"{kind} at {key!r} {str(old)[:40]!r} -> {str(parent)[:60]!r}", json.dumps(tree).encode()


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key, inner in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
        yield tree, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _other_lines(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = data.decode().splitlines()
    at = rng.randrange(len(lines))
    kind = rng.choice(["lost", "twice", "swapped", "blanks", "empty line"])
    if kind == "lost":
        del lines[at]
    elif kind == "twice":
        lines.insert(at, lines[at])
    elif kind == "swapped":
        lines[0], lines[at] = lines[at], lines[0]
    elif kind == "blanks":
        lines[at] = f"  {lines[at]}\t"
    else:
        lines.insert(at, "")
    return f"{kind} at line {at}", "\n".join(lines).encode() + b"\n"


def _signed(directory: Path, path: Path, how: str, changed: bytes) -> Mutant:
    """With a manifest of before there were checksums, which says of the mutated index that it is the right one."""
    manifest = json.loads((directory / "manifest.json").read_text())
    manifest.pop("checksum", None)
    manifest["splits"][path.stem]["index_crc32c"] = crc32c(changed)
    files = {path: changed, directory / "manifest.json": json.dumps(manifest).encode()}
    return Mutant(f"{how}, with its checksum", files)


class Judge:
    """Of the mutants of one directory. convert: runs the conversion that wrote it, its options and these."""

    def __init__(self, directory: Path, convert: Callable[..., object]) -> None:
        self._directory, self._convert, self._before = directory, convert, _meaning(directory)

    def judge(self, mutant: Mutant) -> tuple[str, str]:
        """("noticed", "refused" or "same", what went wrong, or ""); everything is as it was before."""
        kept = {path: path.read_bytes() for path in mutant.files}
        for path, data in mutant.files.items():
            path.write_bytes(data)
        try:
            status, printed = _verify([str(self._directory)])
            if status == 2:
                return "refused", ""
            if status == 0:
                return "same", "" if _meaning(self._directory) == self._before else "not noticed"
            self._repair(printed)
            return "noticed", "" if _verify([str(self._directory)])[0] == 0 else f"not repaired: {printed}"
        finally:
            for path, data in kept.items():
                path.write_bytes(data)

    def _repair(self, printed: str) -> None:
        for line in printed.splitlines():
            if found := re.search(r": python -m pipeline\.verify (.*) \(it rewrites", line):
                _verify(shlex.split(found[1]))
            elif found := re.search(r"its command with (.*?) \(it rewrites", line):
                self._convert(*shlex.split(found[1]))


def _verify(argv: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        try:
            return verify_main(argv), printed.getvalue()
        except InfeedError as e:
            return 2, str(e)


def _meaning(directory: Path) -> object:
    """All that TFDS reads in the sidecars, and the rows of the indexes."""
    rows = {path: encode_index(decode_rows(path.read_bytes())) for path in directory.glob("_index/*.npy")}
    info = tfds.builder_from_directory(str(directory)).info
    features = json.dumps(info.features.to_json(), sort_keys=True)
    return rows, info.as_json, repr(info.features), features, dict(_labels("", info.features)), dict(info.metadata)


def _labels(name: str, feature: Any) -> Iterator[tuple[str, list[str]]]:
    if isinstance(feature, tfds.features.ClassLabel):
        yield name, feature.names
    elif isinstance(feature, tfds.features.FeaturesDict):
        for key, inner in feature.items():
            yield from _labels(f"{name}/{key}", inner)
    elif isinstance(feature, tfds.features.Sequence):
        yield from _labels(name, feature.feature)
