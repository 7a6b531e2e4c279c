"""A manifest with a wrong type anywhere: it is one line, or every value in it is read as it is there.

The suite takes a sample of the mutations; with SWEEP=1 in the environment, all and some pairs."""

import contextlib
import copy
import json
import os
import random
import shutil
from pathlib import Path

import pytest
from sweep import SWEEP

from pipeline import describe, verify
from pipeline.errors import InfeedError
from pipeline.shards.manifest import read_manifest

SEED = int(os.environ.get("SEED", "20"))
SAMPLE, PAIRS = 80, 600
VALUES = (None, True, -1, 1.5, 10**30, "x", "", "\udc80\ud800", [], {}, ["x"], [[1]], {"x": 1}, float("nan"))
DEFAULTS = {"optional": False, "content": "raw", "doc": "", "rejected": 0, "fixups": {}, "sources": {}}
MISSING = object()
UNKNOWN = "\x1b[31munknown"


@pytest.fixture(scope="module")
def directory(write_dataset, tmp_path_factory) -> Path:
    records = [{"image/encoded": b"x", "image/class/label": 1, "image/weight": [0, 1]}] * 3
    path = Path(write_dataset(tmp_path_factory.mktemp("data"), {"train": [records, records], "validation": [records]}))
    fields = json.loads((path / "manifest.json").read_text())
    del fields["checksum"]  # as who changes one by hand does
    fields["labels"] = {"key": "image/class/label", "base": 1, "names": ["cat", "dog"]}
    fields["schema"]["tfds"] = {"dataset_info.json": '{"name": "x"}', "label.labels.txt": "cat\n"}
    fields["splits"]["train"] |= {"fixups": {"png_to_jpeg": 1}, "sources": {"inputs": 6, "bytes": 99}}
    (path / "manifest.json").write_text(json.dumps(fields))
    return path


def places(value, path=()):
    """The path of every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inside:
        yield (*path, step)
        yield from places(part, (*path, step))


def mutations(fields):
    """(path, what is there now): each value replaced by each other one or missing, and a key more in each object."""
    for path in places(fields):
        yield from ((path, value) for value in (*VALUES, MISSING))
    for path in ((), *places(fields)):
        inner = fields
        for step in path:
            inner = inner[step]
        if isinstance(inner, dict):
            yield (*path, UNKNOWN), 1


def mutated(fields, *changes):
    """A copy; None where one change took away what the other is about."""
    fields = copy.deepcopy(fields)
    for (*parents, last), value in changes:
        inner = fields
        try:
            for step in parents:
                inner = inner[step]
            if value is MISSING:
                del inner[last]
            else:
                inner[last] = value
        except (KeyError, IndexError, TypeError):
            return None
    return fields


def same(there, wanted) -> bool:
    """Whether what was read is what stands in the file, of the same types, but for what may be left out."""
    if isinstance(wanted, dict) and isinstance(there, dict):
        filled = {key: part for key, part in there.items() if key not in wanted}
        if any(key not in DEFAULTS or not same(part, DEFAULTS[key]) for key, part in filled.items()):
            return False
        return all(
            same(there[key], part) for key, part in wanted.items() if key in there or (key, part) != ("tfds", {})
        )
    if isinstance(wanted, list) and isinstance(there, list):
        return len(there) == len(wanted) and all(map(same, there, wanted))
    return type(there) is type(wanted) and there == wanted


def refused(message: str) -> str:
    assert "manifest.json: " in message or "format_version" in message
    assert len(message.splitlines()) == 1, message
    return "refused"


def outcome(directory: Path, fields) -> str:
    """Either "read" or "refused"; fails where it is neither."""
    (directory / "manifest.json").write_text(json.dumps(fields))
    try:
        there = json.loads(json.dumps(read_manifest(str(directory)).to_json()))
    except InfeedError as e:
        return refused(str(e))
    assert same(there, fields)
    for tool in (verify, describe):  # which believe it
        with contextlib.suppress(InfeedError):
            tool.main([str(directory)])
    return "read"


def test_mutated_manifests_are_read_unchanged_or_refused_in_one_line(directory, tmp_path, capsys):
    fields = json.loads((directory / "manifest.json").read_text())
    directory = Path(shutil.copytree(directory, tmp_path / "data"))
    assert outcome(directory, fields) == "read"
    every = [(one,) for one in mutations(fields)]
    draw = random.Random(SEED)
    pairs = [tuple(change for (change,) in draw.sample(every, 2)) for _ in range(PAIRS)]
    chosen = every + pairs if SWEEP else draw.sample(every, SAMPLE)
    ended: dict[str, int] = {"read": 0, "refused": 0}
    wrong = []
    for changes in chosen:
        if (edited := mutated(fields, *changes)) is not None:
            try:
                ended[outcome(directory, edited)] += 1
            except Exception as e:
                wrong.append(f"{changes}: {type(e).__name__}: {e}")
        capsys.readouterr()
    print(f"{len(chosen)} mutations: {ended}")
    assert not wrong, "\n".join(wrong)
    assert ended["refused"] > ended["read"] > 0
