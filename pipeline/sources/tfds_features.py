"""TFDS's description of a dataset that it prepared: the features of its records, and the record count of each file.

For the tfds converter and open_dataset. Only TFDS knows how it encodes a feature, so functions here import it, and
TensorFlow with it. Wherever the dataset is, TFDS reads copies of features.json and the few small files next to it in a
temporary directory. TFDS imports the modules of the classes that these files name, so the names are checked first."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import InfeedError, RawDataError, how_to_install
from pipeline.shards.schema import PASSED_ON, Content, Feature, Schema
from pipeline.sources.tfds_files import kept_of_tfds, tfds_leaves
from pipeline.storage.storage import join

_FEATURES = "tensorflow_datasets.core.features"  # has all features of TFDS
_NAMING = ("pythonClassName", "python_class_name")  # protobuf reads both
_DTYPES = {"string": "bytes", "int64": "int64", "float32": "float32"}
_CONTENTS: Mapping[str, Content] = {"image": "image", "text": "text"}


class Described(NamedTuple):
    """TFDS's description of a dataset."""

    schema: Schema  # of records as TFDS encodes them
    splits: Mapping[str, Mapping[str, int]]  # split -> file -> record count, in order


def described_by_tfds(directory: str, tfds: Mapping[str, str], trust_features: Sequence[str] = ()) -> Described:
    """Reads the description in the files that tfds_files returns. trust_features: modules with features of the user's
    own, which TFDS may import. Raises RawDataError, InfeedError."""
    _check_code(directory, tfds, trust_features)
    module, contents = load_tfds(), dict(tfds_leaves(tfds))
    with tempfile.TemporaryDirectory() as copies:
        for name, text in tfds.items():
            (Path(copies) / name).write_text(text, "utf-8")
        try:
            info = module.builder_from_directory(copies).info
            specs = module.core.example_parser.ExampleParser(info.features.get_serialized_info()).flat_feature_specs
            splits = {
                split: dict(zip(sorted(found.filenames), found.shard_lengths, strict=True))
                for split, found in info.splits.items()
            }
        except Exception as e:  # any class: features run code of their own
            raise RawDataError(f"TFDS cannot read {directory}: {type(e).__name__}: {str(e)[:1000]}") from e
    features = {key: _feature(spec, _CONTENTS.get(contents.get(key, ""), "raw")) for key, spec in specs.items()}
    schema = Schema(PASSED_ON, features, version=str(info.version), tfds=kept_of_tfds(tfds))
    return Described(schema, splits)


def _check_code(directory: str, tfds: Mapping[str, str], trusted: Sequence[str]) -> None:
    """Raises RawDataError if TFDS would import anything but its own features and modules of `trusted`."""
    for file in ("features.json", "dataset_info.json"):  # both may describe features
        try:
            names = list(_classes(json.loads(tfds[file])))
        except (ValueError, RecursionError) as e:
            raise RawDataError(f"{join(directory, file)} is not as TFDS writes it: {e}. Copy it again.") from e
        for name in map(str, names):
            if not name.startswith((f"{_FEATURES}.", *(f"{module}." for module in trusted))):
                module = name.rpartition(".")[0] or name
                raise RawDataError(
                    f"{join(directory, file)} names the class {name!r}. TFDS would import {module} and run its code; "
                    f"only {_FEATURES} is allowed. If you trust that module, name it: python -m converters.tfds_to_gcs "
                    f"--trust_features={module}, python -m trainer RECIPE --trust-features {module}, or "
                    f"open_dataset(..., trust_features=[{module!r}])."
                )


def _classes(page: Any) -> Iterator[Any]:
    """All that TFDS would look up as a class, at any depth and however it is written."""
    if isinstance(page, Mapping):
        for key, value in page.items():
            # "type" is from the first versions of TFDS; other things have a type without a dot. A feature may have any
            # name, and a dict as value.
            named = key in _NAMING or (key == "type" and "." in str(value))
            if named and not isinstance(value, Mapping):
                yield value
            yield from _classes(value)
            if key in ("json", "content") and isinstance(
                value, str
            ):  # a feature as text; "content": of the first versions
                yield from _classes(json.loads(value))
    elif isinstance(page, list):
        for each in page:
            yield from _classes(each)


def _feature(spec: Any, content: Content) -> Feature:
    """spec: a tf.io feature. If its length is unknown, it is optional and loses its known dimensions, but no values."""
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
            f"TFDS datasets need tensorflow-datasets and TensorFlow ({e}). Install them: "
            f"{how_to_install('tfds', 'read')}. Without them, a pattern can select the files themselves, and "
            "python -m converters.tfrecord_to_gcs can convert them."
        ) from e
    return tensorflow_datasets
