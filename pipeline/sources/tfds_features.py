"""TFDS's description of a dataset that it prepared: the features of its records, and the record
count of each file.

For the tfds converter and open_dataset. How TFDS encodes its usual features is known here. Only
TFDS knows others, such as sequences of sequences: for these it is imported, and TensorFlow with it.
Wherever the dataset is, TFDS reads copies of features.json and the few small files next to it in a
temporary directory. It imports the modules of the classes that these files name, so the names are
checked first."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import InfeedError, RawDataError
from pipeline.packages import how_to_install
from pipeline.shards.naming import shard_file
from pipeline.shards.schema import PASSED_ON, SHARD_FILES, Content, Dtype, Feature, Schema
from pipeline.sources.named_splits import TfdsFiles, kept_of_tfds, tfds_leaves
from pipeline.storage.storage import join

_FEATURES = "tensorflow_datasets.core.features"  # has all features of TFDS
_NAMING = ("pythonClassName", "python_class_name")  # protobuf reads both
_DTYPES = {"string": "bytes", "int64": "int64", "float32": "float32"}
_CONTENTS: Mapping[str, Content] = {"image": "image", "text": "text"}
_USUAL = (
    "FeaturesDict",
    "Sequence",
    "Tensor",
    "Scalar",
    "Image",
    "Text",
    "ClassLabel",
    "BBoxFeature",
)
# by NumPy's kind
_KINDS: Mapping[str, Dtype] = {"b": "int64", "i": "int64", "u": "int64", "f": "float32"}
_STORED: Mapping[str, tuple[Dtype, tuple[int, ...]]] = {
    "image": ("bytes", ()),
    "text": ("bytes", ()),
    "classLabel": ("int64", ()),
    "boundingBox": ("float32", (4,)),
}
_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


class Described(NamedTuple):
    """TFDS's description of a dataset."""

    schema: Schema  # of records as TFDS encodes them
    splits: Mapping[str, Mapping[str, int]]  # split -> file -> record count, in order


def described_by_tfds(
    directory: str, tfds: TfdsFiles, trust_features: Sequence[str] = ()
) -> Described:
    """Reads the description in the files that tfds_files returns. trust_features: modules with
    features of the user's own, which TFDS may import. Raises RawDataError, InfeedError."""
    form = json.loads(tfds["dataset_info.json"]).get("fileFormat") or "tfrecord"
    if form != "tfrecord":
        raise RawDataError(
            f"{directory} has TFDS's file format {form!r}; only tfrecord can be read. Prepare the "
            "dataset with download_and_prepare(file_format='tfrecord'), in another directory."
        )
    _check_code(directory, tfds, trust_features)
    if described := _described_here(tfds):
        return described
    module = load_tfds()
    contents = dict(tfds_leaves(tfds))
    with tempfile.TemporaryDirectory() as copies:
        for name, text in tfds.items():
            (Path(copies) / name).write_text(text, "utf-8")
        try:
            info = module.builder_from_directory(copies).info
            specs = module.core.example_parser.ExampleParser(
                info.features.get_serialized_info()
            ).flat_feature_specs
            splits = {
                split: dict(
                    zip(sorted(split_info.filenames), split_info.shard_lengths, strict=True)
                )
                for split, split_info in info.splits.items()
            }
        except Exception as e:  # any class: features run code of their own
            raise RawDataError(
                f"TFDS cannot read {directory}: {type(e).__name__}: {str(e)[:1000]}"
            ) from e
    features = {
        key: _feature(spec, _CONTENTS.get(contents.get(key, ""), "raw"))
        for key, spec in specs.items()
    }
    schema = Schema(PASSED_ON, features, version=str(info.version), tfds=kept_of_tfds(tfds))
    return Described(schema, splits)


class _UnusualError(Exception):
    """Only TFDS can tell."""


def _described_here(tfds: TfdsFiles) -> Described | None:
    """None if a feature is not a usual one, or the files are named in a way of their own."""
    try:
        info = json.loads(tfds["dataset_info.json"])
        features = _usual("", json.loads(tfds["features.json"]), ())
        splits = {
            _text(split["name"]): _shards(_text(info["name"]), split) for split in info["splits"]
        }
        version = _text(info["version"])
    except (_UnusualError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
        return None
    return Described(Schema(PASSED_ON, features, version=version, tfds=kept_of_tfds(tfds)), splits)


def _usual(
    key: str, feature: Mapping[str, Any], around: tuple[int | None, ...]
) -> dict[str, Feature]:
    """The features of a record that encode this one. around: the dimensions of the sequences that
    it is in."""
    name = feature.get("pythonClassName", "")
    if name.startswith(f"{_FEATURES}.") and name.rpartition(".")[2] in _USUAL:
        if "featuresDict" in feature:
            features = dict[str, Feature]()
            for inner, described in feature["featuresDict"]["features"].items():
                features |= _usual(f"{key}/{inner}".lstrip("/"), described, around)
            return features
        if "sequence" in feature and not around:
            length = int(feature["sequence"]["length"])
            return _usual(key, feature["sequence"]["feature"], (None if length < 0 else length,))
        if "tensor" in feature and feature["tensor"]["encoding"] == "none":
            dims = [int(dim) for dim in feature["tensor"]["shape"].get("dimensions", ())]
            return {
                key: _stored(_KINDS[np.dtype(feature["tensor"]["dtype"]).kind], (*around, *dims))
            }
        for kind, (dtype, shape) in _STORED.items():
            if kind in feature:
                return {key: _stored(dtype, (*around, *shape), _CONTENTS.get(kind, "raw"))}
    raise _UnusualError


def _stored(dtype: Dtype, shape: Sequence[int | None], content: Content = "raw") -> Feature:
    if any(dim is None or dim < 0 for dim in shape[1:]):
        raise _UnusualError
    if shape and (shape[0] is None or shape[0] < 0):
        return Feature(dtype, (None,), optional=True)
    return Feature(dtype, tuple(shape), content="raw" if shape else content)


def _shards(dataset: str, split: Mapping[str, Any]) -> dict[str, int]:
    counts = [int(length) for length in split["shardLengths"]]
    if split.get("filepathTemplate", _TEMPLATE) != _TEMPLATE or min(counts, default=-1) < 0:
        raise _UnusualError
    files = f"{dataset}-{SHARD_FILES.replace('-', '.tfrecord-', 1)}"
    return {
        shard_file(split["name"], shard, len(counts), files): count
        for shard, count in enumerate(counts)
    }


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise _UnusualError
    return value


def _check_code(directory: str, tfds: TfdsFiles, trusted: Sequence[str]) -> None:
    """Raises RawDataError if TFDS would import anything but its own features and modules of
    `trusted`."""
    for file in ("features.json", "dataset_info.json"):  # both may describe features
        try:
            names = list(_classes(json.loads(tfds[file])))
        except (ValueError, RecursionError) as e:
            raise RawDataError(
                f"{join(directory, file)} is not as TFDS writes it: {e}. Copy it again."
            ) from e
        for name in map(str, names):
            if not name.startswith((f"{_FEATURES}.", *(f"{module}." for module in trusted))):
                module = name.rpartition(".")[0] or name
                raise RawDataError(
                    f"{join(directory, file)} names the class {name!r}. TFDS would import {module} "
                    f"and run its code; only {_FEATURES} is allowed. If you trust that module, "
                    f"name it: python -m converters.tfds_to_gcs --trust-features={module}, python "
                    f"-m trainer RECIPE --trust-features {module}, or open_dataset(..., "
                    f"trust_features=[{module!r}])."
                )


def _classes(page: Any) -> Iterator[Any]:
    """All that TFDS would look up as a class, at any depth and however it is written."""
    if isinstance(page, Mapping):
        for key, value in page.items():
            # "type" is from the first versions of TFDS; other things have a type without a dot. A
            # feature may have any name, and a dict as value.
            named = key in _NAMING or (key == "type" and "." in str(value))
            if named and not isinstance(value, Mapping):
                yield value
            yield from _classes(value)
            # a feature as text; "content": of the first versions
            if key in ("json", "content") and isinstance(value, str):
                yield from _classes(json.loads(value))
    elif isinstance(page, list):
        for each in page:
            yield from _classes(each)


def _feature(spec: Any, content: Content) -> Feature:
    """spec: a tf.io feature. If its length is unknown, it is optional and loses its known
    dimensions, but no values."""
    dtype: Any = _DTYPES[spec.dtype.name]
    if type(spec).__name__ == "FixedLenFeature":
        shape = tuple(spec.shape)
        single = dtype == "bytes" and shape == ()
        return Feature(dtype, shape, spec.default_value is not None, content if single else "raw")
    return Feature(dtype, (None,), optional=True)


def load_tfds() -> Any:
    """The module tensorflow_datasets. InfeedError if it is not installed."""
    try:
        from pipeline.tf_cpu import tf  # before TFDS imports it: hides accelerators and silences it

        assert tf
        import tensorflow_datasets
    except ImportError as e:
        raise InfeedError(
            f"TFDS datasets need tensorflow-datasets and TensorFlow, but there is no {e.name}. "
            f"Install them: {how_to_install('tfds')}. Without them, a pattern can select the files "
            "themselves, and python -m converters.tfrecord_to_gcs can convert them."
        ) from e
    return tensorflow_datasets
