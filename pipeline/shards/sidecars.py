"""The files for TFDS: dataset_info.json, features.json and label names.

With them, `tfds.builder_from_directory(dir)` reads a dataset, with sub-splits. infeed writes TFDS's
format itself, because a conversion commits on workers that have neither TFDS nor TensorFlow."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.shards.manifest import Manifest, SplitEntry
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.typed_json import Json
from pipeline.storage.storage import Storage, join, write_file

INFO_FILE = "dataset_info.json"
METADATA_FILE = "metadata.json"  # infeed never writes it; TFDS's own datasets may have one
SIDECAR_FILES = (INFO_FILE, "features.json")  # and <label key>.labels.txt
# By the dataset's name and not in its schema, which is part of plan digests. Source: image-net.org
# on citing ImageNet.
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
}""",  # noqa: E501
        "location": {"urls": ["https://image-net.org/"]},  # TFDS shows it as the homepage
    }
}


def sidecar_texts(manifest: Manifest) -> dict[str, str]:
    """Name -> text of the files for TFDS: those in the manifest's schema, or else made from its
    features."""
    files = dict(manifest.schema.tfds)
    if not files:
        files["features.json"] = json.dumps(_features_json(manifest), indent=4, sort_keys=True)
        if manifest.labels:
            files[labels_file(manifest.labels.key)] = (
                "\n".join(_class_names(manifest.labels)) + "\n"
            )
    about = json.loads(manifest.schema.tfds.get(INFO_FILE, "{}")) or _about(manifest)
    splits = [
        _split_info(name, entry, manifest.schema.files)
        for name, entry in sorted(manifest.splits.items())
    ]
    info = {**about, "fileFormat": "tfrecord", "splits": splits}
    files[INFO_FILE] = json.dumps(info, indent=2, sort_keys=True)
    return files


def write_sidecars(storage: Storage, directory: str, manifest: Manifest) -> None:
    """Publishes the texts of sidecar_texts."""
    for name, text in sidecar_texts(manifest).items():
        write_file(storage, join(directory, name), text.encode())


def sidecar_names(schema: Schema, labels: Labels | None) -> Sequence[str]:
    """The names of the files that write_sidecars publishes."""
    of_labels = [labels_file(labels.key)] if labels else []
    return list(dict.fromkeys((*SIDECAR_FILES, *schema.tfds, *of_labels)))


def labels_file(key: str) -> str:
    """The file in which TFDS looks for the class names of a feature."""
    return f"{key.replace('/', '-')}.labels.txt"


def names_in(text: str) -> tuple[str, ...]:
    """The class names in such a file: TFDS ignores blank lines, and white space around a name."""
    return tuple(filter(None, map(str.strip, text.split("\n"))))


def _about(manifest: Manifest) -> Json:
    """The fields of dataset_info.json that do not depend on the splits."""
    return {
        "name": manifest.name,
        "version": manifest.schema.version,
        "moduleName": "infeed",
        "description": (
            f"{manifest.name}, converted by infeed. Its manifest.json has schema, labels and "
            "checksums."
        ),
        **_ORIGINS.get(manifest.name, {}),
        **_supervised(manifest),
    }


def _supervised(manifest: Manifest) -> Json:
    """The field with the (input, label) of as_supervised=True. The input is the only image or,
    without images, the only text.

    Empty if a key is nested: TFDS looks for them at the top level only."""
    features = manifest.schema.features
    by_content = defaultdict[str, list[str]](list)
    for key, feature in features.items():
        by_content[feature.content].append(key)
    inputs = by_content["image"] or by_content["text"]
    keys = [*inputs, *([manifest.labels.key] if manifest.labels else [])]
    if len(inputs) != 1 or len(keys) != 2:
        return {}
    if any("/" in key or key not in features or features[key].optional for key in keys):
        return {}
    return {"supervisedKeys": {"tuple": {"items": [{"featureKey": key} for key in keys]}}}


def _split_info(name: str, entry: SplitEntry, files: str) -> Json:
    return {
        "name": name,
        "filepathTemplate": files,
        # int64 is a string in proto JSON
        "shardLengths": [str(shard.records) for shard in entry.shards],
        "numBytes": str(entry.num_bytes),
    }


def _features_json(manifest: Manifest) -> Json:
    """TFDS joins nested names with "/", so `image/class/label` becomes image -> class -> label."""
    tree: Json = {}
    for key, feature in manifest.schema.features.items():
        if feature.optional:
            continue  # TFDS parses every feature in this file and fails if a record lacks one
        *parents, leaf = key.split("/")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        node[leaf] = _leaf(key, feature, manifest.labels)
    return _dict_feature(tree)


def _dict_feature(tree: Mapping[str, Any]) -> Json:
    features = {k: v if "pythonClassName" in v else _dict_feature(v) for k, v in tree.items()}
    return _of_class("features_dict.FeaturesDict", featuresDict={"features": features})


def _leaf(key: str, feature: Feature, labels: Labels | None) -> Json:
    if labels and key == labels.key:
        classes = {"numClasses": str(len(_class_names(labels)))}
        leaf = _of_class("class_label_feature.ClassLabel", classLabel=classes)
    elif feature.content == "image":
        # TFDS detects the format from the bytes and decodes to this number of channels.
        image: Json = {
            "dtype": "uint8",
            "shape": {"dimensions": ["-1", "-1", str(feature.channels or 3)]},
        }
        if feature.channels is None:
            image["encodingFormat"] = "jpeg"
        return _of_class("image_feature.Image", image=image)
    elif feature.content == "text" and feature.shape == ():
        return _of_class("text_feature.Text", text={})
    else:
        dtype = "string" if feature.dtype == "bytes" else feature.dtype
        known = feature.shape and None not in feature.shape
        dims = {"dimensions": list(map(str, feature.shape))} if known else {}
        leaf = _of_class(
            "scalar.Scalar" if feature.shape == () else "tensor_feature.Tensor",
            tensor={"dtype": dtype, "encoding": "none", "shape": dims},
        )
    return _sequence(leaf) if feature.shape == (None,) else leaf


def _sequence(inner: Json) -> Json:
    return _of_class("sequence_feature.Sequence", sequence={"feature": inner, "length": "-1"})


def _of_class(name: str, **fields: Any) -> Json:
    return {**fields, "pythonClassName": f"tensorflow_datasets.core.features.{name}"}


def _class_names(labels: Labels) -> list[str]:
    """TFDS numbers names from 0, so the numbers below the base need names too."""
    unused = [f"unused {i}" if labels.base > 1 else "background" for i in range(labels.base)]
    return [*unused, *labels.names]


def has_sidecars(manifest: Manifest) -> bool:
    """Whether a conversion by infeed wrote the manifest, and so these files too."""
    return manifest.writer.startswith("infeed") and not manifest.is_index
