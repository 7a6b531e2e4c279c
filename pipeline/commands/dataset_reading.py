"""How to read a dataset: the commands that verify it and train on it, and a program."""

import shlex
from typing import Any

from pipeline.console.commands import program
from pipeline.shards.manifest import Manifest
from pipeline.tokenizers import PACKED_TEXT

CROP, BATCH = 224, 32
LEAST_IMAGENET = 100_000  # records: its recipe has a batch of 1,024 and a schedule for a million
# of the recipe images: the smallest --size for its model, and its default
LEAST_SIDE, RECIPE_SIDE = (16, 64)


def commands(manifest: Manifest, side: int | None = None) -> str:
    """Commands that verify it and train on it, one per line. side: of its images, in pixels, if it
    is known."""
    lines = [f"{program('pipeline.commands.verify')} {shlex.quote(manifest.directory)}"]
    if (recipe := recipe_of(manifest)) and (split := _train_split(manifest)):
        options = [
            "--data-dir",
            manifest.directory,
            "--workdir",
            f"runs/{recipe}",
            *_splits(manifest, split),
        ]
        if recipe == "images" and side and side < RECIPE_SIDE:
            options += ["--size", str(max(side, LEAST_SIDE))]
        lines.append(f"{program('trainer')} {recipe} {shlex.join(options)}")
    return "\n".join(lines)


def python(manifest: Manifest, side: int | None = None) -> dict[str, Any]:
    """What a program that reads batches of its training split has to know: its split, the feature
    of its image if it has one, to what size to crop it, and how many records a batch may have."""
    split = _train_split(manifest) or next(iter(sorted(manifest.splits)))
    return {
        "split": split,
        "image": _image(manifest),
        "size": min(side or CROP, CROP),
        "batch": min(BATCH, max(1, manifest.splits[split].num_records)),
    }


def recipe_of(manifest: Manifest) -> str | None:
    """The name of a recipe that trains on these records without changes; None if there is none."""
    if manifest.schema.name == PACKED_TEXT:
        return "byte_lm"
    labels = manifest.labels
    features = manifest.schema.features
    if not _image(manifest) or not labels or labels.count < 2 or labels.key not in features:
        return None
    one_number = (features[labels.key].dtype, features[labels.key].shape) == ("int64", ())
    records = sum(entry.num_records for entry in manifest.splits.values())
    imagenet = labels.count == 1000 and records >= LEAST_IMAGENET
    return ("imagenet_resnet50" if imagenet else "images") if one_number else None


def _train_split(manifest: Manifest) -> str | None:
    """train, or the largest; None if no split has records."""
    sizes = {
        name: entry.num_records for name, entry in manifest.splits.items() if entry.num_records
    }
    return "train" if "train" in sizes else max(sizes, key=lambda name: sizes[name], default=None)


def _splits(manifest: Manifest, train: str) -> list[str]:
    """The flags that choose what to train on and what to evaluate, where recipes' defaults do not
    fit."""
    others = [
        name
        for name, entry in sorted(manifest.splits.items())
        if name != train and entry.num_records
    ]
    if not others:
        return ["--train-split", f"{train}[:90%]", "--eval-split", f"{train}[90%:]"]
    options = [] if train == "train" else ["--train-split", train]
    if "validation" not in others:
        similar = [name for name in others if name.startswith("val")]
        options += ["--eval-split", [*similar, *others][0]]
    return options


def _image(manifest: Manifest) -> str | None:
    """Its only feature with an image; None if there are several or none."""
    shapes = {
        key: feature.shape
        for key, feature in manifest.schema.features.items()
        if feature.content == "image"
    }
    return next(iter(shapes)) if [*shapes.values()] == [()] else None
