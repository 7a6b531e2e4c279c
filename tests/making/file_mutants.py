"""Mutants of any file: changed bytes, and for JSON changed values. Some are what an attacker would write."""

import copy
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

VALUES = (
    *(None, True, False, 0, -1, 1.5, 10**30, 2**63, float("nan"), float("inf"), "", "0", "\ud800", "\u202e\x1b[31m"),
    *("../../evil", "evilmod.X", "evilmod:Config", [], {}, [[]], ["evilmod.X"], {"evilmod.X": 1}),
)  # fmt: skip
DEEP = 900  # json parses it; others may not


def mutants(data: bytes, seed: int) -> Iterator[tuple[str, bytes]]:
    """Endless: how it was changed, and the changed file."""
    rng = random.Random(seed)
    changes: list[Callable[[bytes, random.Random], tuple[str, bytes]]] = [
        *(_flipped, _cut, _repeated, _shortened, _overwritten),
        *((_other_value, _other_value, _odd_text) * 2 if _lines(data) else ()),
    ]
    yield "empty", b""
    while True:
        for change in changes:
            how, changed = change(data, rng)
            if changed != data:
                yield how, changed


def _flipped(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    at, bit = rng.randrange(len(data)), rng.randrange(8)
    return f"bit {bit} of byte {at}", data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]


def _cut(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    at = rng.randrange(len(data))
    return f"cut at byte {at}", data[:at]


def _range(data: bytes, rng: random.Random) -> tuple[int, int]:
    first = rng.randrange(len(data))
    return first, rng.randint(first + 1, min(len(data), first + 200))


def _repeated(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    first, end = _range(data, rng)
    return f"bytes {first} to {end} twice", data[:end] + data[first:]


def _shortened(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    first, end = _range(data, rng)
    return f"bytes {first} to {end} removed", data[:first] + data[end:]


def _overwritten(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    first, end = _range(data, rng)
    return f"bytes {first} to {end} random", data[:first] + rng.randbytes(end - first) + data[end:]


def _lines(data: bytes) -> list[Any]:
    """The JSON on each line, or that of the complete file; [] if it is not JSON."""
    for texts in ([data], data.splitlines()):
        try:
            return [json.loads(text) for text in texts]
        except ValueError:
            continue
    return []


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(tree, dict | list):
        for key, inner in list(tree.items() if isinstance(tree, dict) else enumerate(tree)):
            yield tree, key
            yield from _places(inner)


def _other_value(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    lines = _lines(data)
    parent, key = rng.choice([place for line in lines for place in _places(line)])
    kind, old = (
        rng.choice(["value", "value", "value", "lost", "added", "copied"]),
        copy.deepcopy(parent[key]),
    )
    if kind == "lost":
        del parent[key]
    elif kind == "added" and isinstance(parent, dict):
        parent[rng.choice(["pythonClassName", "step", "unknown", "\ud800"])] = rng.choice(VALUES)
    elif kind == "copied" and isinstance(parent, list):
        parent.insert(0, old)
    else:
        parent[key] = rng.choice(VALUES)
    return f"{kind} at {key!r}: {str(parent)[:80]!r}", b"\n".join(
        json.dumps(line).encode() for line in lines
    ) + b"\n"


def _odd_text(data: bytes, rng: random.Random) -> tuple[str, bytes]:
    """JSON that no program writes, in the place of a value."""
    lines, mark = _lines(data), "the mutated value"
    parent, key = rng.choice([place for line in lines for place in _places(line)])
    how, text = rng.choice(
        [
            ("deep", "[" * DEEP + "]" * DEEP),
            ("too deep", '{"a":' * 100_000 + "1" + "}" * 100_000),
            ("a key twice", '{"a": 1, "a": 2}'),
            ("a huge number", "9" * 5000),
            ("a number with an exponent", "1e999"),
            ("bad UTF-8", '"\udcff"'),
        ]
    )
    parent[key] = mark
    changed = b"\n".join(json.dumps(line).encode() for line in lines) + b"\n"
    return f"{how} at {key!r}", changed.replace(
        json.dumps(mark).encode(), text.encode(errors="surrogateescape")
    )
