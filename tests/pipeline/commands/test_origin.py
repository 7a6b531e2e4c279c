"""How a dataset was made, from its manifest and the summaries of its conversion, which may be missing or damaged."""

import dataclasses
import json

import pytest

from pipeline.commands.dataset_page import of_dataset, of_split
from pipeline.commands.dataset_splits import Conversion, read_conversion
from pipeline.shards.manifest import INDEX_WRITER, Manifest, ShardEntry, SplitEntry
from pipeline.shards.schema import Labels, Schema
from pipeline.storage.local import LocalStorage

ENTRY = SplitEntry(
    (ShardEntry("train-0", 1, 1, 0),),
    0,
    "plan",
    "keys",
    5,
    sources={"inputs": 1, "bytes": 2_000_000},
)
SUMMARY = {"started": 86_400.5, "seconds": 1234.5, "warnings": ["slow"], "split": "train"}


def conversion(directory, text):
    (directory / "_summary").mkdir()
    (directory / "_summary/train.json").write_text(text)
    return read_conversion(LocalStorage(), str(directory), "train")


def test_the_summary_of_a_conversion_has_its_time_raw_data_and_warnings(tmp_path):
    rows = dict(of_split("train", ENTRY, conversion(tmp_path, json.dumps(SUMMARY))))
    assert rows["train: converted"] == "1970-01-02 00:00:00 UTC, in 20 min 34 s"
    assert rows["train: raw data"] == "1 input, 2 MB"
    assert rows["train: warning"] == "slow"
    assert rows["train: plan, seed"] == "plan, 5"
    folders = dataclasses.replace(ENTRY, sources={"inputs": 2, "bytes": 0})
    assert dict(of_split("train", folders, Conversion()))["train: raw data"] == "2 inputs"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "null", '{"started": "x"', json.dumps(SUMMARY | {"started": 1e300})]
)
def test_a_damaged_summary_is_named_and_the_rest_is_told(tmp_path, text):
    rows = dict(of_split("train", ENTRY, conversion(tmp_path, text)))
    assert rows["train: converted"] == f"{tmp_path}/_summary/train.json is damaged"
    assert rows["train: fingerprint"] == ENTRY.fingerprint


def test_an_index_of_foreign_files_is_described_without_a_conversion_summary(tmp_path):
    assert read_conversion(LocalStorage(), str(tmp_path), "train") == Conversion()
    manifest = Manifest(
        "a", Schema("s", {}), {}, Labels("label", 1, ("x", "y")), f"{INDEX_WRITER} 1.0"
    )
    assert dict(of_dataset(manifest)) == {
        "written by": f"{INDEX_WRITER} 1.0: an index of existing TFRecord files",
        "schema": "s",
        "labels": "2 classes in label, numbered from 1",
    }
    unknown = dataclasses.replace(manifest, writer="", labels=None)
    assert dict(of_dataset(unknown)) == {"written by": "an unknown program", "schema": "s"}
