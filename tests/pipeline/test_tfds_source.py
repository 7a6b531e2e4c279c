"""A directory that TFDS prepared is a dataset: its records are TFDS's own, and counted as it says."""

import itertools
import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow_datasets as tfds
from raw_data.records import write_tfds_by_hand

from pipeline.datasets import eval_dataset, open_dataset
from pipeline.errors import EmptySplitError, InfeedError, OptionError, RawDataError, ShardError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.sources import tfds_features
from pipeline.sources.records import fetch
from pipeline.sources.tfds_features import described_by_tfds

READING = Path(__file__).parents[2] / "docs/reading.md"
NUMBER = Schema("number", {"number": Feature("int64")})


@pytest.fixture
def tiny(tiny_tfds, tmp_path):
    return shutil.copytree(tiny_tfds / "tiny/1.2.0", tmp_path / "1.2.0")


def edit_info(directory, change):
    path = directory / "dataset_info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


@pytest.mark.parametrize(("split", "count"), [("train", 23), ("validation", 6)])
def test_a_tfds_source_has_the_records_that_tfds_reads(tiny_tfds, split, count):
    directory = tiny_tfds / "tiny/1.2.0"
    records = open_dataset(directory, split)
    assert (records.num_records, records.info.whole_files, records.info.crcs) == (count, 1, None)
    assert records.layout.features["image"].content == "image"
    names = tuple(tfds.builder_from_directory(str(directory)).info.features["label"].names)
    assert (records.labels.key, records.labels.base, records.labels.names) == ("label", 0, names)
    assert records.labels.count == len(names)
    keys = ("label", "vec", "flag", "nested/ids")
    batches = eval_dataset(records, global_batch=1, keys=keys, pad_to={"nested/ids": 4}).batches()
    theirs = tfds.builder_from_directory(str(directory)).as_dataset(split=split)
    for ours, their in itertools.zip_longest(batches, tfds.as_numpy(theirs)):
        assert (ours["label"][0], bool(ours["flag"][0])) == (their["label"], their["flag"])
        np.testing.assert_array_equal(ours["vec"][0], their["vec"])
        assert (
            ours["nested/ids"][0].tolist()[: len(their["nested"]["ids"])]
            == their["nested"]["ids"].tolist()
        )


def test_a_part_of_a_split_is_the_one_that_tfds_means(tiny):
    labels = [
        int(e["label"])
        for e in tfds.as_numpy(tfds.builder_from_directory(str(tiny)).as_dataset("train[:37%]"))
    ]
    batches = eval_dataset(tiny, "train[:37%]", global_batch=1, keys=("label",)).batches()
    assert [int(batch["label"][0]) for batch in batches] == labels
    with pytest.raises(OptionError, match="has no split 'test'. Known: train, validation"):
        open_dataset(tiny, "test")


@pytest.mark.parametrize(("count", "found"), [(22, "has more records"), (24, "has 23 records")])
def test_a_file_of_another_count_than_it_says_is_an_error(tiny, count, found):
    edit_info(tiny, lambda info: info["splits"][0].update(shardLengths=[str(count)]))
    records = open_dataset(tiny)
    assert records.num_records == count
    with pytest.raises(
        ShardError, match=rf"tiny-train.*{found}; .*dataset_info\.json says {count}\. Copy the file"
    ):
        fetch(records, np.arange(count))


def test_an_unreadable_tfds_directory_is_refused_with_the_remedy(tiny, monkeypatch):
    (tiny / "tiny-validation.tfrecord-00000-of-00001").unlink()
    with pytest.raises(
        ShardError,
        match="1 of 1 files of 'validation' are missing, such as tiny-validation.*Copy the",
    ):
        open_dataset(tiny, "validation")
    edit_info(tiny, lambda info: info.update(fileFormat="array_record"))
    with pytest.raises(
        RawDataError, match=r"format 'array_record'; only tfrecord .*file_format='tfrecord'"
    ):
        open_dataset(tiny)
    edit_info(tiny, lambda info: info.update(fileFormat="tfrecord"))
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InfeedError, match=r"pip install -e '.*tfds\]'.*a pattern can select"):
        open_dataset(tiny)
    assert open_dataset(f"{tiny}/tiny-train*").num_records == 23


def test_empty_files_are_skipped_and_a_split_of_empty_files_is_refused(tmp_path):
    payloads = [encode_example(NUMBER, {"number": i}) for i in range(9)]
    write_tfds_by_hand(tmp_path / "some", [payloads[:4], [], payloads[4:]], {"number": "int64"})
    records = open_dataset(tmp_path / "some")
    assert [record[0] for record in fetch(records, np.arange(9))] == payloads
    assert records.info.whole_files == 2
    write_tfds_by_hand(tmp_path / "none", [[]], {"number": "int64"})
    with pytest.raises(EmptySplitError, match="nothing to read"):
        open_dataset(tmp_path / "none")


CORE = "tensorflow_datasets.core.features"
NAMED = {"pythonClassName": "stranger.X"}
SCALAR = {
    "pythonClassName": f"{CORE}.scalar.Scalar",
    "tensor": {"dtype": "int64", "encoding": "none", "shape": {}},
}


def within(kind, **content):
    return {"pythonClassName": f"{CORE}.{kind}", **content}


def of(feature, name="a"):
    return within("features_dict.FeaturesDict", featuresDict={"features": {name: feature}})


def as_text(content):
    return of(within("features_dict.FeaturesDict", jsonFeature={"json": content}))


FIRST = {"type": "stranger.X", "content": {}}
STRANGERS = {
    "at the top": NAMED,
    "of a feature": of(SCALAR | NAMED),
    "of a feature that has the name of a field": of(of(SCALAR | NAMED, "type"), "pythonClassName"),
    "in a sequence": of(within("sequence_feature.Sequence", sequence={"feature": SCALAR | NAMED, "length": "-1"})),
    "under the other name of the field": of({"python_class_name": "stranger.X", "tensor": SCALAR["tensor"]}),
    "as the first TFDS wrote it": {"type": f"{CORE}.features_dict.FeaturesDict", "content": {"a": FIRST}},
    "as text, as the first TFDS wrote it": {
        "type": f"{CORE}.features_dict.FeaturesDict",
        "proto_cls": "tensorflow_datasets.FeaturesDict",
        "content": json.dumps({"features": {"a": SCALAR | NAMED}}),
    },
    "in JSON as text": as_text(json.dumps({"b": FIRST})),
    "not a text": of(SCALAR | {"pythonClassName": ["stranger.X"]}),
    "like TFDS's": of(SCALAR | {"pythonClassName": "tensorflow_datasets_stranger.X"}),
    "TFDS's, but not a feature's": of(SCALAR | {"pythonClassName": "tensorflow_datasets.scripts.cli.main.X"}),
    "that of a trusted module, continued": of(SCALAR | {"pythonClassName": "trusted_stranger.X"}),
}  # fmt: skip


@pytest.fixture
def stranger(tmp_path, monkeypatch):
    """A dataset of TFDS, next to modules that end the test if they are imported, and one that is trusted."""
    for name in ("stranger", "tensorflow_datasets_stranger", "trusted_stranger"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "trusted.py").write_text(
        "from tensorflow_datasets import features\nclass Mine(features.Scalar): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    payload = encode_example(NUMBER, {"number": 7})
    write_tfds_by_hand(tmp_path / "prepared", [[payload]], {"number": "int64"})
    return tmp_path / "prepared"


@pytest.mark.parametrize("where", STRANGERS)
def test_a_class_that_is_not_one_of_tfds_is_refused_before_tfds_imports_it(stranger, where):
    (stranger / "features.json").write_text(json.dumps(STRANGERS[where]))
    with pytest.raises(
        RawDataError, match=r"features\.json names the class .*\. TFDS would import .* and run its"
    ):
        open_dataset(stranger, trust_features=["trusted"])


def test_features_in_dataset_info_are_refused_too(stranger):
    edit_info(stranger, lambda info: info.update(features=SCALAR | NAMED))
    with pytest.raises(
        RawDataError, match=r"dataset_info\.json names the class 'stranger\.X'\. TFDS would import"
    ):
        open_dataset(stranger)


def test_a_module_that_is_trusted_is_imported(stranger):
    path = stranger / "features.json"
    path.write_text(path.read_text().replace(f"{CORE}.scalar.Scalar", "trusted.Mine"))
    with pytest.raises(
        RawDataError, match=r"run its code; only .* allowed\. .* open_dataset\(\.\.\.,"
    ):
        open_dataset(stranger)
    assert "trusted" not in sys.modules
    assert open_dataset(stranger, trust_features=["trusted"]).num_records == 1


def test_features_may_be_named_like_fields_of_the_description(stranger):
    write_tfds_by_hand(
        stranger, [[b""]], {"type": "int64", "pythonClassName": "int64", "json": "float32"}
    )
    assert {*open_dataset(stranger).layout.features} == {"type", "pythonClassName", "json"}
    statistics = {"features": [{"name": "number", "type": "INT"}], "numExamples": "1"}
    edit_info(stranger, lambda info: info["splits"][0].update(statistics=statistics))
    assert open_dataset(stranger).num_records == 1


def documented_features():
    """TFDS feature -> the features that docs/reading.md says it is stored as."""
    _, _, section = READING.read_text().partition("### Features of TFDS")
    rows = re.findall(r"^\| (`.*?`) \| (`.*?`) \|", section.partition("\n## ")[0], re.MULTILINE)
    return {
        code: re.findall("`(.*?)`", stored)
        for codes, stored in rows
        for code in re.findall("`(.*?)`", codes)
    }


def test_the_documents_say_what_each_feature_of_tfds_is_stored_as(tmp_path):
    documented = documented_features()
    assert len(documented) == 22
    names = {
        f"{i}": eval(code, {**vars(tfds.features), "np": np}) for i, code in enumerate(documented)
    }
    tfds.features.FeaturesDict(names).save_config(tmp_path)
    files = {path.name: path.read_text() for path in tmp_path.iterdir()}
    files["dataset_info.json"] = json.dumps(
        {"name": "all", "version": "1.0.0", "fileFormat": "tfrecord", "splits": []}
    )
    found = described_by_tfds(str(tmp_path), files).schema.features
    for i, (code, stored) in enumerate(documented.items()):
        due = [
            f"x{key.removeprefix(str(i))} {feature.dtype} {list(feature.shape)}"
            for key, feature in sorted(found.items())
            if key.partition("/")[0] == str(i)
        ]
        assert due == stored, code


def test_the_usual_features_are_read_without_tfds_as_tfds_reads_them(tmp_path, monkeypatch):
    info = {"name": "one", "version": "1.0.0", "fileFormat": "tfrecord", "splits": []}
    known = []
    for i, code in enumerate(documented_features()):
        feature = eval(code, {**vars(tfds.features), "np": np})
        (tmp_path / f"{i}").mkdir()
        tfds.features.FeaturesDict({"x": feature}).save_config(tmp_path / f"{i}")
        files = {path.name: path.read_text() for path in (tmp_path / f"{i}").iterdir()}
        files["dataset_info.json"] = json.dumps(info)
        theirs = described_by_tfds(str(tmp_path), files)
        with monkeypatch.context() as without:
            without.setitem(sys.modules, "tensorflow_datasets", None)
            try:
                ours = described_by_tfds(str(tmp_path), files)
            except InfeedError:
                continue
        with monkeypatch.context() as only:
            only.setattr(tfds_features, "_described_here", lambda tfds: None)
            assert ours == described_by_tfds(str(tmp_path), files) == theirs, code
        known.append(code)
    assert len(known) >= 12, known
