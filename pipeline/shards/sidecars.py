"""The files for TFDS: dataset_info.json, features.json and label names.

With them, `tfds.builder_from_directory(dir)` reads a dataset, with sub-splits. infeed writes TFDS's format itself,
because a conversion commits on workers that have neither TFDS nor TensorFlow."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.storage import Storage, join

INFO_FILE = "dataset_info.json"
METADATA_FILE = "metadata.json"  # infeed never writes it; TFDS's own datasets may have one
SIDECAR_FILES = (INFO_FILE, "features.json")  # and <label key>.labels.txt
LATER_FIELDS = ("citation", "description", "location", "supervisedKeys")  # not written by the first conversions

# By the dataset's name and not in its schema, which is part of plan digests. Source: image-net.org on citing ImageNet.
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
    """Name -> text of the files for TFDS: those in the manifest's schema, or else made from its features."""
    files = dict(manifest.schema.tfds)
    if not files:
        files["features.json"] = json.dumps(_features_json(manifest), indent=4, sort_keys=True)
        if manifest.labels:
            files[labels_file(manifest.labels.key)] = "\n".join(_class_names(manifest.labels)) + "\n"
    files[INFO_FILE] = json.dumps(_dataset_info(manifest), indent=2, sort_keys=True)
    return files


def write_sidecars(storage: Storage, directory: str, manifest: Manifest) -> None:
    """Publishes the texts of sidecar_texts."""
    for name, text in sidecar_texts(manifest).items():
        with storage.publish(join(directory, name)) as sink:
            sink.write(text.encode())


def remove_sidecars(storage: Storage, directory: str, manifest: Manifest) -> None:
    """Removes the files that write_sidecars publishes."""
    for name in sidecar_names(manifest.schema, manifest.labels):
        storage.delete(join(directory, name))


def sidecar_names(schema: Schema, labels: Labels | None) -> Sequence[str]:
    """The names of the files that write_sidecars publishes."""
    return list(dict.fromkeys((*SIDECAR_FILES, *schema.tfds, *([labels_file(labels.key)] if labels else []))))


def labels_file(key: str) -> str:
    """The file in which TFDS looks for the class names of a feature."""
    return f"{key.replace('/', '-')}.labels.txt"


def _dataset_info(manifest: Manifest) -> dict[str, Any]:
    return {
        **(json.loads(manifest.schema.tfds.get(INFO_FILE, "{}")) or _about(manifest)),
        "fileFormat": "tfrecord",
        "splits": [_split_info(name, entry, manifest.schema.files) for name, entry in sorted(manifest.splits.items())],
    }


def _about(manifest: Manifest) -> dict[str, Any]:
    """The fields that do not depend on the splits.

    Always with a description, so that a file that lost another of LATER_FIELDS does not look like an early one."""
    named = {"name": manifest.name, "version": manifest.schema.version, "moduleName": "infeed"}
    keys = _supervised_keys(manifest.labels, manifest.schema.features) if manifest.labels else None
    supervised = {"supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}}} if keys else {}
    named["description"] = f"{manifest.name}, converted by infeed. Its manifest.json has schema, labels and checksums."
    return {**named, **_ORIGINS.get(manifest.name, {}), **supervised}


def _supervised_keys(labels: Labels, features: Mapping[str, Feature]) -> tuple[str, str] | None:
    """The (input, label) of as_supervised=True. The input is the only image or, without images, the only text.

    None if a key is nested: TFDS looks for them at the top level only."""
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
            continue  # TFDS parses every feature in this file and fails if a record lacks one
        *parents, leaf = key.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = _leaf(key, feature, manifest.labels)
    return _dict_feature(tree)


def _dict_feature(tree: Mapping[str, Any]) -> dict[str, Any]:
    features = {k: v if "pythonClassName" in v else _dict_feature(v) for k, v in tree.items()}
    return _of_class("features_dict.FeaturesDict", featuresDict={"features": features})


def _leaf(key: str, feature: Feature, labels: Labels | None) -> dict[str, Any]:
    if labels and key == labels.key:
        classes = {"numClasses": str(len(_class_names(labels)))}
        label = _of_class("class_label_feature.ClassLabel", classLabel=classes)
        return _sequence(label) if feature.shape == (None,) else label
    if feature.content == "image":
        # TFDS detects the format from the bytes and decodes to this number of channels.
        image: dict[str, Any] = {"dtype": "uint8", "shape": {"dimensions": ["-1", "-1", str(feature.channels or 3)]}}
        if feature.channels is None:
            image["encodingFormat"] = "jpeg"
        return _of_class("image_feature.Image", image=image)
    if feature.content == "text" and feature.shape == ():
        return _of_class("text_feature.Text", text={})
    dtype = "string" if feature.dtype == "bytes" else feature.dtype
    dims = {"dimensions": [str(d) for d in feature.shape]} if feature.shape and None not in feature.shape else {}
    tensor = {"dtype": dtype, "encoding": "none", "shape": dims}
    leaf = _of_class("scalar.Scalar" if feature.shape == () else "tensor_feature.Tensor", tensor=tensor)
    return _sequence(leaf) if feature.shape == (None,) else leaf


def _sequence(inner: dict[str, Any]) -> dict[str, Any]:
    return _of_class("sequence_feature.Sequence", sequence={"feature": inner, "length": "-1"})


def _of_class(name: str, **fields: Any) -> dict[str, Any]:
    return {**fields, "pythonClassName": f"tensorflow_datasets.core.features.{name}"}


def _class_names(labels: Labels) -> list[str]:
    """TFDS numbers names from 0, so the numbers below the base need names too."""
    return [f"unused {i}" if labels.base > 1 else "background" for i in range(labels.base)] + list(labels.names)
