"""A TFDS dataset before and after: TFDS itself decodes the same examples from both."""

import json
import shutil
import sys

import numpy as np
import pytest
import tensorflow_datasets as tfds

from converters import tfds_to_gcs
from converters.tfds_to_gcs import DatasetName, find_tfds
from converters.tfrecord import find_raw
from pipeline.commands.verify import main as verify
from pipeline.errors import InfeedError, OptionError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import Feature, Labels

pytestmark = pytest.mark.usefixtures("without_beam")


def convert(data_dir, out, *flags, dataset="tiny"):
    tfds_to_gcs.main(
        [f"--dataset={dataset}", f"--data-dir={data_dir}", f"--gcs-output-path={out}", *flags]
    )


@pytest.fixture(scope="module")
def converted(tiny_tfds, tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    convert(tiny_tfds, out, "--num-shards=train=4", "--num-shards=validation=2")
    return tiny_tfds / "tiny/1.2.0", out


def decoded(directory, split, **options):
    """Each example as text, sorted: two sets of examples are equal when these are."""
    examples = tfds.builder_from_directory(str(directory)).as_dataset(split=split, **options)
    return sorted(repr(plain(example)) for example in examples)


def plain(value):
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in sorted(value.items())}
    if isinstance(value, tuple):
        return [plain(inner) for inner in value]
    return value.to_list() if hasattr(value, "to_list") else np.asarray(value).tolist()


@pytest.mark.parametrize("split", ["train", "validation"])
def test_tfds_decodes_the_same_examples_before_and_after(converted, split):
    before, after = (decoded(directory, split) for directory in converted)
    assert after == before
    assert len(before) == {"train": 23, "validation": 6}[split]
    assert decoded(converted[1], split, as_supervised=True) == decoded(
        converted[0], split, as_supervised=True
    )


def test_features_names_and_version_are_those_of_the_original(converted):
    before, after = (tfds.builder_from_directory(str(directory)) for directory in converted)
    assert repr(after.info.features) == repr(before.info.features)
    assert after.info.features["label"].names == ["cat", "grey eel", "dog"]
    assert (after.info.name, str(after.version)) == ("tiny", "1.2.0")
    assert after.info.splits["train"].shard_lengths == [
        s.records for s in read_manifest(str(converted[1])).splits["train"].shards
    ]
    assert len(list(after.as_dataset(split="train[:50%]"))) == 12


def test_the_schema_of_a_prepared_dataset_lists_the_features_of_its_records(converted):
    manifest = read_manifest(str(converted[1]))
    listed = Feature("int64", (None,), optional=True)
    assert manifest.schema.features == {
        "boxes/at": listed,
        "boxes/box": Feature("float32", (None,), optional=True),
        "flag": Feature("int64"),
        "image": Feature("bytes", content="image"),
        "label": Feature("int64"),
        "nested/ids": listed,
        "nested/rag/ragged_flat_values": listed,
        "nested/rag/ragged_row_lengths_0": listed,
        "text": Feature("bytes", content="text"),
        "vec": Feature("float32", (2, 3)),
    }
    assert manifest.labels == Labels("label", 0, ("cat", "grey eel", "dog"))
    assert verify([str(converted[1]), "--decode"]) == 0


def test_the_files_alone_are_enough_where_tfds_is_not_installed(converted, tmp_path):
    from converters import tfrecord_to_gcs

    tfrecord_to_gcs.main([f"--raw-data-dir={converted[0]}", f"--gcs-output-path={tmp_path}"])
    assert decoded(tmp_path, "train") == decoded(converted[0], "train")
    assert read_manifest(str(tmp_path)).labels == Labels("label", 0, ("cat", "grey eel", "dog"))


@pytest.mark.slow
def test_the_second_split_joins_later_and_replacing_one_keeps_the_sidecars(
    converted, tiny_tfds, tmp_path
):
    convert(tiny_tfds, tmp_path, "--splits=validation")
    convert(tiny_tfds, tmp_path, "--splits=train")
    convert(tiny_tfds, tmp_path, "--splits=train", "--num-shards=train=3", "--overwrite")
    for split in ("train", "validation"):
        assert decoded(tmp_path, split) == decoded(converted[0], split)


@pytest.fixture
def data_dir(tiny_tfds, tmp_path):
    """A copy, to spoil."""
    shutil.copytree(tiny_tfds / "tiny", tmp_path / "data/tiny")
    return tmp_path / "data"


def find(data_dir, text):
    return find_tfds(DatasetName.parse(text), str(data_dir), [], None)[1][0].uri


def test_the_newest_version_and_the_only_config_are_found_and_missing_ones_reported(data_dir):
    there = data_dir / "tiny/1.2.0"
    shutil.copytree(there, data_dir / "tiny/1.10.0")
    for config in ("small", "large"):
        shutil.copytree(there, data_dir / "many" / config / "1.0.0")
    shutil.copytree(there, data_dir / "one/only/2.0.0")
    assert "/tiny/1.10.0/" in find(data_dir, "tiny")
    assert "/tiny/1.2.0/" in find(data_dir, "tiny:1.2.0")
    assert "/many/small/1.0.0/" in find(data_dir, "many/small")
    assert "/one/only/2.0.0/" in find(data_dir, "one")
    with pytest.raises(
        OptionError,
        match=r"several configs. Choose one: --dataset=many/CONFIG, .* of large, small\.",
    ):
        find(data_dir, "many")
    with pytest.raises(
        RawDataError,
        match=r"tiny:9\.0\.0 is not prepared: .* has 1\.2\.0, 1\.10\.0\. Give --download",
    ):
        find(data_dir, "tiny:9.0.0")
    with pytest.raises(
        RawDataError, match=r"tfds\.builder\('mnist', data_dir='.*'\)\.download_and_prepare\(\)"
    ):
        find(data_dir, "mnist")
    with pytest.raises(OptionError, match=r"--dataset=a/b/c: write name"):
        find(data_dir, "a/b/c")


def test_the_data_directory_is_never_written_into(data_dir):
    there = data_dir / "tiny/1.2.0"
    before = {path.name: path.read_bytes() for path in there.iterdir()}
    with pytest.raises(
        OptionError, match=r"tiny/1\.2\.0 is inside the raw data \(.*/tiny\): a second run would"
    ):
        convert(data_dir, there)
    assert {path.name: path.read_bytes() for path in there.iterdir()} == before


def change_info(directory, change):
    path = directory / "dataset_info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


@pytest.mark.parametrize("command", ["tfds", "tfrecord"])
def test_preparing_another_split_again_does_not_change_the_plan(data_dir, command):
    there = data_dir / "tiny/1.2.0"

    def schema():
        if command == "tfds":
            return find_tfds(DatasetName.parse("tiny"), str(data_dir), ["train"], None)[0].schema
        return find_raw(str(there), ["train"], [], None)[0].schema

    before = schema()
    (there / "notes.json").write_bytes(b"\xff")
    change_info(there, lambda info: info["splits"][1].update(numBytes="77"))
    assert schema() == before
    change_info(there, lambda info: info.update(description="another"))
    assert schema() != before


SPOILT = {
    "no UTF-8": ("label.labels.txt", b"\xff", r"label\.labels\.txt is not as TFDS writes it: 'utf-8' codec"),
    "no JSON": ("dataset_info.json", b"{", r"dataset_info\.json is not as TFDS writes it: Expecting property name"),
    "no object": ("features.json", b"[]", r"features\.json is not as TFDS writes it: it is not an object\. Copy it again"),
    "a key twice": ("features.json", b'{"a": 1, "a": 2}', r'is not as TFDS writes it: an object has the key "a" twice\.'),
    "deep": ("dataset_info.json", b"[" * 10**5, r"dataset_info\.json is not as TFDS writes it: .* decoding a JSON"),
    "no features": ("features.json", b'{"featuresDict": 3}', r"features\.json describes no features \(AttributeError"),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_damaged_file_of_tfds_is_named(data_dir, what):
    name, data, message = SPOILT[what]
    (data_dir / "tiny/1.2.0" / name).write_bytes(data)
    with pytest.raises(RawDataError, match=message):
        find(data_dir, "tiny")
    with pytest.raises(RawDataError, match=message):
        find_raw(str(data_dir / "tiny/1.2.0"), [], [], None)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"splits": 3}, r"TFDS cannot read .*tiny/1\.2\.0: ParseError"),
        (
            {"fileFormat": "array_record"},
            "file format 'array_record'; only tfrecord .*file_format=",
        ),
        ({}, "1 of 1 files of 'train' are missing, the first"),
    ],
)
def test_what_tfds_does_not_read_and_a_missing_file_are_named(data_dir, changed, message):
    change_info(data_dir / "tiny/1.2.0", lambda info: info.update(changed))
    if not changed:
        (data_dir / "tiny/1.2.0/tiny-train.tfrecord-00000-of-00001").unlink()
    with pytest.raises(RawDataError, match=message):
        find(data_dir, "tiny")


def test_a_dataset_that_cannot_be_prepared_is_reported_with_the_error_of_tfds(tmp_path, out):
    with pytest.raises(
        RawDataError, match=r"TFDS cannot prepare no_such_dataset in .*: DatasetNotFoundError"
    ):
        convert(tmp_path, out, "--download", dataset="no_such_dataset")


@pytest.fixture
def own_features(data_dir, tmp_path, monkeypatch):
    """A module with a feature of the user's, which the dataset "tiny" has."""
    name = tmp_path.name  # another in each test: TFDS imports a module once
    (tmp_path / f"{name}.py").write_text(
        "from tensorflow_datasets import features\nclass Flag(features.Scalar): ...\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    path = data_dir / "tiny/1.2.0/features.json"
    page = json.loads(path.read_text())
    page["featuresDict"]["features"]["flag"]["pythonClassName"] = f"{name}.Flag"
    path.write_text(json.dumps(page))
    return name


def test_features_of_ones_own_are_converted_when_their_module_is_named(own_features, data_dir, out):
    with pytest.raises(
        RawDataError, match=rf"--trust-features={own_features}, python -m trainer RECIPE"
    ):
        convert(data_dir, out)
    assert not out.exists()
    assert own_features not in sys.modules
    convert(data_dir, out, f"--trust-features={own_features}")
    assert len(decoded(out, "train")) == 23


def test_a_download_does_not_import_what_a_description_in_its_directory_names(
    own_features, data_dir, out
):
    with pytest.raises(RawDataError, match=r"TFDS cannot prepare tiny in .*: DatasetNotFoundError"):
        convert(data_dir, out, "--download")
    assert own_features not in sys.modules


def test_without_tfds_the_error_says_what_to_install(tiny_tfds, out, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(InfeedError, match=r"Install them: pip install -e '.*tfds\]'"):
        convert(tiny_tfds, out)


def test_verify_reports_class_names_that_were_added_after_the_conversion(
    tiny_tfds, tmp_path, out, capsys
):
    shutil.copytree(tiny_tfds, tmp_path / "raw")
    (tmp_path / "raw/tiny/1.2.0/label.labels.txt").unlink()
    convert(tmp_path / "raw", out)
    names = out / "label.labels.txt"
    names.with_name("notes.labels.txt").write_text("TFDS does not look at it\n")
    assert verify([str(out)]) == 0
    names.write_text("red\ngreen\nblue\n")
    assert tfds.builder_from_directory(str(out)).info.features["label"].names == [
        "red",
        "green",
        "blue",
    ]
    capsys.readouterr()
    assert verify([str(out)]) == 1
    printed = capsys.readouterr().out
    assert (
        "label.labels.txt: is not in the manifest, but TFDS reads the class names of label from it"
        in printed
    )
    assert f"To remove files that are not in the manifest: rm {names}\n" in printed
    assert "--write-sidecars" not in printed
