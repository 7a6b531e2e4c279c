"""Any prepared TFDS dataset: where it is, and what its records hold. Its files then go the way of all TFRecords.

The one converter that needs TFDS (and TensorFlow with it), for TFDS alone knows how a feature stands in a record. Only
the launcher does, inside two functions; workers pass records on. The data directory is read through our Storage: only
features.json and the few small files beside it are shown to TFDS, in a temporary directory."""

import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from converters.tfds_files import kept_of_tfds, tfds_files, tfds_labels, tfds_leaves
from converters.tfrecord_layouts import RawTfrecords, chosen_files, sources_of
from pipeline.named_splits import Files
from pipeline.shards.errors import InfeedError, OptionError, RawDataError
from pipeline.shards.naming import validate_split
from pipeline.shards.schema import PASSED_ON, Content, Feature, Schema
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["DatasetName", "find_tfds", "prepare"]

_NAME = re.compile(r"(\w+)(?:/([\w.+-]+))?(?::(\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_DTYPES = {"string": "bytes", "int64": "int64", "float32": "float32"}
_CONTENTS: Mapping[str, Content] = {"image": "image", "text": "text"}


@dataclass(frozen=True)
class DatasetName:
    """name[/config][:version], as TFDS writes it."""

    name: str
    config: str | None = None
    version: str | None = None

    @staticmethod
    def parse(text: str) -> "DatasetName":
        """Raises OptionError."""
        match = _NAME.fullmatch(text)
        if not match:
            raise OptionError(f"--dataset={text}: write name, name/config, name:1.0.0 or name/config:1.0.0.")
        return DatasetName(*match.groups())

    def __str__(self) -> str:
        return self.name + (f"/{self.config}" if self.config else "") + (f":{self.version}" if self.version else "")


def find_tfds(dataset: DatasetName, data_dir: str, splits: Sequence[str], scratch_dir: str | None) -> RawTfrecords:
    """The sources, schema and labels of a dataset that TFDS has prepared. Splits and scratch_dir: see find_raw.

    Raises RawDataError when it is not there or not whole, OptionError, InfeedError without TFDS."""
    storage = open_storage(data_dir)
    directory = _directory(storage, data_dir, dataset)
    listed = storage.list(directory)
    tfds = tfds_files(storage, directory, listed)
    if not tfds:
        raise RawDataError(_not_prepared(dataset, data_dir, f"{directory} has no features.json and dataset_info.json"))
    form = json.loads(tfds["dataset_info.json"]).get("fileFormat") or "tfrecord"
    if form != "tfrecord":
        raise RawDataError(
            f"{directory} is in TFDS's format {form!r}; only tfrecord can be read record by record. Give another "
            "--data_dir, and --download, which prepares it as tfrecord."
        )
    schema, names = _described_by_tfds(directory, tfds)
    files = chosen_files(directory, _files(directory, names, listed), splits)
    sources, scratch = sources_of(storage, directory, files, scratch_dir)
    return RawTfrecords(sources, dataset.name, schema, tfds_labels(tfds), scratch)


def _directory(storage: Storage, data_dir: str, dataset: DatasetName) -> str:
    """<data_dir>/<name>[/<config>]/<version>, the newest version if none is named."""
    there = join(data_dir, dataset.name)
    _, folders = storage.entries(there)
    configs = [folder for folder in folders if not _VERSION.fullmatch(folder) and not folder.startswith("incomplete")]
    config = dataset.config
    if config is None and configs and len(configs) == len(folders):
        if len(configs) > 1:
            raise OptionError(f"{there} has several configs. Say which: --dataset={dataset.name}/CONFIG, CONFIG being "
                              f"one of {', '.join(configs)}.")  # fmt: skip
        config = configs[0]
    if config is not None:
        there = join(there, config)
        _, folders = storage.entries(there)
    versions = sorted(filter(_VERSION.fullmatch, folders), key=lambda version: [int(n) for n in version.split(".")])
    if not versions:
        raise RawDataError(_not_prepared(dataset, data_dir, f"{there} has no version of it"))
    if dataset.version and dataset.version not in versions:
        raise RawDataError(_not_prepared(dataset, data_dir, f"{there} has {', '.join(versions)}"))
    return join(there, dataset.version or versions[-1])


def _not_prepared(dataset: DatasetName, data_dir: str, found: str) -> str:
    return (
        f"{dataset} is not prepared: {found}. Give --download, which lets TFDS prepare it first; or do that in Python: "
        f"tfds.builder({str(dataset)!r}, data_dir={data_dir!r}).download_and_prepare()"
    )


def _files(directory: str, names: Mapping[str, Sequence[str]], listed: Mapping[str, Stat]) -> Files:
    for split, files in names.items():
        validate_split(split)
        missing = [name for name in files if name not in listed]
        if missing:
            raise RawDataError(
                f"{directory}: of {len(files)} files of {split!r} {len(missing)} are missing, {missing[0]} first. Copy "
                "the dataset again, or prepare it again."
            )
    return {split: {name: listed[name] for name in files} for split, files in names.items()}


def _described_by_tfds(directory: str, tfds: Mapping[str, str]) -> tuple[Schema, dict[str, list[str]]]:
    """The schema of the records as TFDS encodes them, and the files of each split. Raises RawDataError."""
    module, contents = _tfds(), dict(tfds_leaves(tfds))
    with tempfile.TemporaryDirectory() as copies:
        for name, text in tfds.items():
            (Path(copies) / name).write_text(text, "utf-8")
        try:
            info = module.builder_from_directory(copies).info
            specs = module.core.example_parser.ExampleParser(info.features.get_serialized_info()).flat_feature_specs
            names = {split: sorted(found.filenames) for split, found in info.splits.items()}
        except Exception as e:  # of any class: features are programs of their own
            raise RawDataError(f"TFDS cannot read {directory}: {type(e).__name__}: {str(e)[:1000]}") from e
    features = {key: _feature(spec, _CONTENTS.get(contents.get(key, ""), "raw")) for key, spec in specs.items()}
    return Schema(PASSED_ON, features, version=str(info.version), tfds=kept_of_tfds(tfds)), names


def _feature(spec: Any, content: Content) -> Feature:
    """spec: a tf.io feature. One of unknown length may be absent; its known dimensions are lost, not its values."""
    dtype: Any = _DTYPES[spec.dtype.name]
    if type(spec).__name__ == "FixedLenFeature":
        shape = tuple(spec.shape)
        single = dtype == "bytes" and shape == ()
        return Feature(dtype, shape, spec.default_value is not None, content if single else "raw")
    return Feature(dtype, (None,), optional=True)


def prepare(dataset: DatasetName, data_dir: str) -> None:
    """Downloads and prepares a dataset with TFDS, if that was not done yet. Raises RawDataError, InfeedError."""
    module = _tfds()
    try:
        module.builder(str(dataset), data_dir=data_dir).download_and_prepare(file_format="tfrecord")
    except Exception as e:  # of any class: a builder is a program of its own
        raise RawDataError(f"TFDS cannot prepare {dataset} in {data_dir}: {type(e).__name__}: {str(e)[:1000]}") from e


def _tfds() -> Any:
    try:
        from pipeline.tf_cpu import tf  # before TFDS does: hidden from accelerators, and quiet

        assert tf
        import tensorflow_datasets
    except ImportError as e:
        raise InfeedError(
            f"TFDS datasets need tensorflow-datasets and TensorFlow ({e}). Install them: pip install "
            "'infeed[tfds,read]'. Their files alone can be re-sharded without: python -m converters.tfrecord_to_gcs."
        ) from e
    return tensorflow_datasets
