"""The commands and the program that read a dataset, by what its schema contains."""

import shlex

from pipeline.shards.manifest import Manifest
from pipeline.shards.schema import Schema
from pipeline.tokenizers import PACKED_TEXT
from pipeline.tools.program import program

__all__ = ["commands", "python"]


def commands(manifest: Manifest) -> str:
    """Commands that verify it and train on it, one per line."""
    place = shlex.quote(manifest.directory)
    lines = [f"{program('pipeline.verify')} {place}"]
    if recipe := _recipe(manifest):
        lines.append(f"{program('trainer')} {recipe} --data-dir {place} --workdir runs/{recipe}")
    return "\n".join(lines)


def python(manifest: Manifest, split: str) -> str:
    """A program that reads batches of a split."""
    lines = ["from pipeline.datasets import open_dataset, train_dataset"]
    ops = ""
    if image := _image(manifest.schema):
        lines.append("from pipeline.ops import DecodeRandomResizedCrop")
        ops = f', ops=[DecodeRandomResizedCrop({image!r}, into="image", size=(224, 224))]'
    lines += [
        "",
        f"records = open_dataset({manifest.directory!r}, {split!r})",
        "print(len(records), records.examples()[0])"
        if not manifest.schema.opaque
        else "print(len(records), records[0])",
        f"for batch in train_dataset(records, global_batch=32{ops}):",
        "    ...",
    ]
    return "\n".join(lines)


def _image(schema: Schema) -> str | None:
    images = [key for key, feature in schema.features.items() if feature.content == "image"]
    return images[0] if len(images) == 1 else None


def _recipe(manifest: Manifest) -> str | None:
    """A recipe that trains on it as it is."""
    if manifest.schema.name == PACKED_TEXT:
        return "byte_lm"
    if _image(manifest.schema) and manifest.labels:
        return "imagenet_resnet50" if len(manifest.labels.names) == 1000 else "images"
    return None
