"""The classes that the files of a TFDS dataset name: TFDS imports their modules, whatever they are.

Needs no TFDS: the names are checked before TFDS reads anything."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.errors import RawDataError
from pipeline.storage.storage import join

__all__ = ["check_code"]

_FEATURES = "tensorflow_datasets.core.features"  # has all features of TFDS
_NAMING = ("pythonClassName", "python_class_name")  # protobuf reads both


def check_code(directory: str, tfds: Mapping[str, str], trusted: Sequence[str]) -> None:
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
            if key == "json" and isinstance(value, str):  # the content of a feature, as text
                yield from _classes(json.loads(value))
    elif isinstance(page, list):
        for each in page:
            yield from _classes(each)
