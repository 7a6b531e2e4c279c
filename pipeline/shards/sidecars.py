"""The two files that let TFDS read a dataset: dataset_info.json and features.json, and label names beside them.

`tfds.builder_from_directory(dir)` then works, with sub-splits. Written by hand in TFDS's own form, because the commit
of a conversion runs on workers that have neither TFDS nor TensorFlow."""

import json
from collections.abc import Mapping
from typing import Any

from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.schema import Feature, Labels
from pipeline.shards.storage import Storage, join

__all__ = [
    "INFO_FILE",
    "LATER_FIELDS",
    "METADATA_FILE",
    "SIDECAR_FILES",
    "labels_file",
    "remove_sidecars",
    "sidecar_texts",
    "write_sidecars",
]

INFO_FILE = "dataset_info.json"
METADATA_FILE = "metadata.json"  # none of ours; TFDS's own datasets may have one
SIDECAR_FILES = (INFO_FILE, "features.json")  # and <label key>.labels.txt
LATER_FIELDS = ("citation", "description", "location", "supervisedKeys")  # that the first conversions did not write
_CLASSES = "tensorflow_datasets.core.features"

# By name of the dataset, not in its schema: that is part of plan digests. From image-net.org's page on citing it.
_ORIGINS: Mapping[str, Mapping[str, Any]] = {
    "imagenet2012": {
        "citation": """@article{ILSVRC15,
  author = {Olga Russakovsky and Jia Deng and Hao Su and Jonathan Krause and Sanjeev Satheesh and Sean Ma and
    Zhiheng Huang and Andrej Karpathy and Aditya Khosla and Michael Bernstein and Alexander C. Berg and Li Fei-Fei},
  title = {{ImageNet Large Scale Visual Recognition Challenge}},
  journal = {International Journal of Computer Vision (IJCV)},
  year = {2015},
  volume = {115},
  number = {3},
  pages = {211-252},
  doi = {10.1007/s11263-015-0816-y}
}""",
        "location": {"urls": ["https://image-net.org/"]},  # TFDS shows it as the homepage
    }
}


def sidecar_texts(manifest: Manifest) -> dict[str, str]:
    """Name -> text of the TFDS files for all splits: those in the manifest's schema, or else made from its features."""
    files = dict(manifest.schema.tfds)
    if not files:
        files["features.json"] = json.dumps(_features_json(manifest), indent=4, sort_keys=True)
        if manifest.labels:
            files[labels_file(manifest.labels.key)] = "\n".join(_class_names(manifest.labels)) + "\n"
    files[INFO_FILE] = json.dumps(_dataset_info(manifest), indent=2, sort_keys=True)
    return files


def write_sidecars(storage: Storage, directory: str, manifest: Manifest) -> None:
    """Publishes the TFDS files of `manifest`; see sidecar_texts."""
    for name, text in sidecar_texts(manifest).items():
        with storage.publish(join(directory, name)) as sink:
            sink.write(text.encode())


def remove_sidecars(storage: Storage, directory: str, manifest: Manifest) -> None:
    """Removes what write_sidecars published for `manifest`."""
    labels = [labels_file(manifest.labels.key)] if manifest.labels else []
    for name in dict.fromkeys((*SIDECAR_FILES, *manifest.schema.tfds, *labels)):
        storage.delete(join(directory, name))


def labels_file(key: str) -> str:
    """Where TFDS looks for the names of the classes of a feature."""
    return f"{key.replace('/', '-')}.labels.txt"


def _dataset_info(manifest: Manifest) -> dict[str, Any]:
    return {
        **(json.loads(manifest.schema.tfds.get(INFO_FILE, "{}")) or _about(manifest)),
        "fileFormat": "tfrecord",
        "splits": [_split_info(name, entry, manifest.schema.files) for name, entry in sorted(manifest.splits.items())],
    }


def _about(manifest: Manifest) -> dict[str, Any]:
    """What does not depend on the splits.

    Every file has a description, so that one that lost another of LATER_FIELDS does not look like an early one."""
    named = {"name": manifest.name, "version": manifest.schema.version, "moduleName": "infeed"}
    keys = _supervised_keys(manifest.labels, manifest.schema.features) if manifest.labels else None
    supervised = {"supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}}} if keys else {}
    named["description"] = f"{manifest.name}, converted by infeed. Its manifest.json has schema, labels and checksums."
    return {**named, **_ORIGINS.get(manifest.name, {}), **supervised}


def _supervised_keys(labels: Labels, features: Mapping[str, Feature]) -> tuple[str, str] | None:
    """The (input, label) of as_supervised=True: the only image, or without images the only text, and the label.

    None where a key is nested: TFDS looks for them at the top level only."""
    contents = [[key for key, feature in features.items() if feature.content == kind] for kind in ("image", "text")]
    inputs = next(filter(None, contents), [])
    keys = (*inputs, labels.key)
    usable = all("/" not in key and key in features and not features[key].optional for key in keys)
    return (inputs[0], labels.key) if len(inputs) == 1 and usable else None


def _split_info(name: str, entry: SplitEntry, files: str) -> dict[str, Any]:
    return {
        "name": name,
        "filepathTemplate": files,
        "shardLengths": [str(shard.records) for shard in entry.shards],  # int64 is a string in proto JSON
        "numBytes": str(entry.num_bytes),
    }


def _features_json(manifest: Manifest) -> dict[str, Any]:
    """TFDS joins nested names with "/", so `image/class/label` becomes image -> class -> label."""
    tree: dict[str, Any] = {}
    for key, feature in manifest.schema.features.items():
        if feature.optional:
            continue  # TFDS parses every feature it knows and fails where one is absent
        *parents, leaf = key.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = _leaf(key, feature, manifest.labels)
    return _dict_feature(tree)


def _dict_feature(tree: Mapping[str, Any]) -> dict[str, Any]:
    features = {k: v if "pythonClassName" in v else _dict_feature(v) for k, v in tree.items()}
    return {
        "featuresDict": {"features": features},
        "pythonClassName": f"{_CLASSES}.features_dict.FeaturesDict",
    }


def _leaf(key: str, feature: Feature, labels: Labels | None) -> dict[str, Any]:
    if labels and key == labels.key:
        count = str(len(_class_names(labels)))
        name = {"classLabel": {"numClasses": count}, "pythonClassName": f"{_CLASSES}.class_label_feature.ClassLabel"}
        return _sequence(name) if feature.shape == (None,) else name
    if feature.content == "image":
        # TFDS decodes by content, to as many channels as stand here.
        image: dict[str, Any] = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", str(feature.channels or 3)]}}
        if feature.channels is None:
            image["encodingFormat"] = "jpeg"
        return {"image": image, "pythonClassName": f"{_CLASSES}.image_feature.Image"}
    if feature.content == "text" and feature.shape == ():
        return {"text": {}, "pythonClassName": f"{_CLASSES}.text_feature.Text"}
    dtype = "string" if feature.dtype == "bytes" else feature.dtype
    dims = {"dimensions": [str(d) for d in feature.shape]} if feature.shape and None not in feature.shape else {}
    tensor = {"dtype": dtype, "encoding": "none", "shape": dims}
    if feature.shape == (None,):
        inner = {"tensor": tensor, "pythonClassName": f"{_CLASSES}.tensor_feature.Tensor"}
        return _sequence(inner)
    kind = "scalar.Scalar" if feature.shape == () else "tensor_feature.Tensor"
    return {"tensor": tensor, "pythonClassName": f"{_CLASSES}.{kind}"}


def _sequence(inner: dict[str, Any]) -> dict[str, Any]:
    sequence = {"feature": inner, "length": "-1"}
    return {"sequence": sequence, "pythonClassName": f"{_CLASSES}.sequence_feature.Sequence"}


def _class_names(labels: Labels) -> list[str]:
    """TFDS numbers names from 0: the numbers below the base get names of their own."""
    return [f"unused {i}" if labels.base > 1 else "background" for i in range(labels.base)] + list(labels.names)
