"""A manifest that was changed at random, by hand or by accident: it is one line, or read as it is there."""

import contextlib
import itertools
import json
import os
import shutil
from pathlib import Path

import pytest
from file_mutants import mutants
from sweep import SWEEP

from pipeline import describe, verify
from pipeline.errors import InfeedError
from pipeline.shards.manifest import read_manifest

SEED, MUTANTS = int(os.environ.get("SEED", "20")), 4000 if SWEEP else 120
DEFAULTS = {"optional": False, "content": "raw", "doc": "", "rejected": 0, "fixups": {}, "sources": {}}


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


def test_mutated_manifests_are_read_unchanged_or_refused_in_one_line(directory, tmp_path, capsys):
    directory = Path(shutil.copytree(directory, tmp_path / "data"))
    path, ended, wrong = directory / "manifest.json", [], []
    for how, data in itertools.islice(mutants(path.read_bytes(), SEED), MUTANTS):
        path.write_bytes(data)
        try:
            there = json.loads(json.dumps(read_manifest(str(directory)).to_json()))
        except InfeedError as e:
            ended.append("refused")
            wrong += [how] * (len(str(e).splitlines()) != 1 or "manifest" not in str(e))
            continue
        assert same(there, json.loads(data)), how
        for tool in (verify, describe):  # which believe it
            with contextlib.suppress(InfeedError):
                tool.main([str(directory)])
        capsys.readouterr()
        ended.append("read")
    assert wrong == []
    assert ended.count("refused") > ended.count("read") > 0
