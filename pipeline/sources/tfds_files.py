"""The small files that TFDS writes to describe a dataset, and what they state about its records. Needs no TFDS.

The tfds converter and open_dataset recognize a dataset by them; other tools use those next to TFRecord files."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.errors import RawDataError
from pipeline.shards.schema import Labels
from pipeline.shards.sidecars import METADATA_FILE, SIDECAR_FILES, labels_file
from pipeline.shards.typed_json import once
from pipeline.storage.storage import Stat, Storage, join

_TFDS_FILES = (*SIDECAR_FILES, METADATA_FILE)  # and <label key>.labels.txt
_REWRITTEN = ("fileFormat", "splits")  # keys of dataset_info.json that the commit writes


def tfds_files(storage: Storage, directory: str, listed: Mapping[str, Stat]) -> dict[str, str]:
    """Name -> text of the files that describe a TFDS dataset; {} if there are none. Raises RawDataError."""
    if not {"features.json", "dataset_info.json"} <= listed.keys():
        return {}
    names = [name for name in listed if name in _TFDS_FILES or name.endswith(".labels.txt")]
    return {name: _text_of_tfds(storage, join(directory, name)) for name in sorted(names)}


def _text_of_tfds(storage: Storage, path: str) -> str:
    try:
        text = storage.read(path).decode()
        if path.endswith(".json") and not isinstance(json.loads(text, object_pairs_hook=once), dict):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as e:
        raise RawDataError(
            f"{path} is not as TFDS writes it: {e}. Copy it again; without features.json and dataset_info.json, "
            "converters.tfrecord_to_gcs uses only the records."
        ) from e
    return text


def kept_of_tfds(tfds: Mapping[str, str]) -> dict[str, str]:
    """The part of the files that a schema keeps: everything except the sizes of splits.

    So preparing one split again does not change the plans of the others."""
    if not tfds:
        return {}
    info = {key: value for key, value in json.loads(tfds["dataset_info.json"]).items() if key not in _REWRITTEN}
    return {**tfds, "dataset_info.json": json.dumps(info, indent=2, sort_keys=True)}


def tfds_labels(tfds: Mapping[str, str]) -> Labels | None:
    """The names of the only ClassLabel, or of the one called label. TFDS counts from 0. Raises RawDataError."""
    found = {}
    for key, kind in tfds_leaves(tfds):
        names = tfds.get(labels_file(key))
        if kind == "classLabel" and names:
            found[key] = Labels(key, 0, tuple(names.splitlines()))
    return found.get("label") or (next(iter(found.values())) if len(found) == 1 else None)


def tfds_classes(tfds: Mapping[str, str]) -> Labels | None:
    """As tfds_labels. A ClassLabel that has only a number of classes, such as mnist's, gets the names "0", "1", ...

    Only for readers: a conversion lists real names."""
    numbered = {
        key: Labels(key, 0, tuple(map(str, range(int(described["numClasses"])))))
        for key, kind, described in _described(tfds)
        if kind == "classLabel" and re.fullmatch("[0-9]{1,7}", str(described.get("numClasses", "")))
    }
    only = next(iter(numbered.values())) if len(numbered) == 1 else None
    return tfds_labels(tfds) or numbered.get("label") or only


def tfds_leaves(tfds: Mapping[str, str]) -> Sequence[tuple[str, str]]:
    """(key in a record, kind such as image or classLabel) of each feature in features.json, even inside sequences.

    Raises RawDataError."""
    return [(key, kind) for key, kind, _ in _described(tfds)]


def _described(tfds: Mapping[str, str]) -> Sequence[tuple[str, str, Any]]:
    try:
        return list(_leaves("", json.loads(tfds.get("features.json", "{}"))))
    except (AttributeError, KeyError, TypeError, RecursionError) as e:
        raise RawDataError(
            f"TFDS's features.json describes no features ({type(e).__name__}: {e}). Copy it again."
        ) from e


def _leaves(key: str, feature: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    if "featuresDict" in feature:
        for name, inner in feature["featuresDict"].get("features", {}).items():
            yield from _leaves(f"{key}/{name}".lstrip("/"), inner)
    elif "sequence" in feature:
        yield from _leaves(key, feature["sequence"]["feature"])
    else:
        yield from ((key, kind, value) for kind, value in feature.items() if kind != "pythonClassName")
