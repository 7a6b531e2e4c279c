"""Which features a record has: names, kinds, shapes. Encoders check against it, parsers get static shapes from it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

from pipeline.shards.errors import SchemaError
from pipeline.shards.typed_json import REQUIRED, Count, JsonFile

__all__ = ["PASSED_ON", "SHARD_FILES", "Content", "Dtype", "Feature", "Labels", "Schema"]

Dtype = Literal["bytes", "int64", "float32"]
Content = Literal["raw", "text", "image"]  # what a bytes feature holds: opaque, UTF-8, an encoded image file

SHARD_FILES = "{SPLIT}-{SHARD_X_OF_Y}"  # TFDS's own notation
PASSED_ON = "tfrecord"  # name of the schema of records that infeed did not encode: their keys are not in them
_TFDS_VERSION = "1.0.0"  # TFDS wants one; the dataset's own identity is the manifest's fingerprint


@dataclass(frozen=True)
class Feature:
    """One feature of a record.

    shape: () is one value, (n,) n values, (a, b) a*b values in row-major order, (None,) any number.
    optional: the feature may be absent. content: what bytes mean. doc: one line for people.
    channels: of an image, where that is the same in all records: TFDS decodes to so many."""

    dtype: Dtype
    shape: tuple[Count | None, ...] = field(default=(), metadata=REQUIRED)
    optional: bool = False
    content: Content = "raw"
    doc: str = ""
    channels: int | None = None

    def __post_init__(self) -> None:
        if self.dtype not in get_args(Dtype):
            raise SchemaError(f"dtype {self.dtype!r} is not one of {', '.join(get_args(Dtype))}.")
        if self.content not in get_args(Content) or (self.content != "raw" and self.dtype != "bytes"):
            raise SchemaError(
                f"content {self.content!r} of dtype {self.dtype}: allowed are raw, and text or image of bytes."
            )
        if self.channels is not None and (self.content != "image" or self.channels not in (1, 3, 4)):
            raise SchemaError(f"channels {self.channels} of content {self.content}: allowed are 1, 3 or 4 of an image.")
        if None in self.shape and len(self.shape) != 1:
            raise SchemaError(f"shape {self.shape}: an unknown dimension is allowed only as (None,).")

    @cached_property
    def num_values(self) -> int | None:
        """How many values a record holds; None for any number."""
        count = 1
        for dim in self.shape:
            if dim is None:
                return None
            count *= dim
        return count


@dataclass(frozen=True)
class Labels:
    """What the numbers in a label feature mean: the name of label `base + i` is names[i]."""

    key: str
    base: int
    names: tuple[str, ...]


@dataclass(frozen=True)
class Schema:
    """A named set of features; equal schemas describe the same bytes. Without features, records are opaque.

    files: how shard files are named. version: what TFDS is told; both matter to stock readers of known datasets.
    tfds: name -> text of files that TFDS is given as they are, in place of those made from the features."""

    name: str
    features: Mapping[str, Feature]
    files: str = SHARD_FILES
    version: str = _TFDS_VERSION
    tfds: Mapping[str, str] = field(default_factory=dict)

    @property
    def opaque(self) -> bool:
        """Whether nothing is known of what is inside a record: any bytes will do."""
        return not self.features

    @cached_property
    def encoded_keys(self) -> tuple[tuple[str, bytes], ...]:
        """Each key and its UTF-8, in the order of the latter: that of features in an Example."""
        return tuple(sorted(((key, key.encode()) for key in self.features), key=lambda pair: pair[1]))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; features in sorted order, and what is as usual left out."""
        return {
            "name": self.name,
            "features": {key: _feature_json(feature) for key, feature in sorted(self.features.items())},
            **({"files": self.files} if self.files != SHARD_FILES else {}),
            **({"version": self.version} if self.version != _TFDS_VERSION else {}),
            **({"tfds": dict(sorted(self.tfds.items()))} if self.tfds else {}),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> "Schema":
        """The inverse of to_json. Raises SchemaError for a key or value that does not fit."""
        return JsonFile("malformed schema", SchemaError, "Compare it with one in a manifest.json.").typed(data, Schema)


def _feature_json(feature: Feature) -> dict[str, Any]:
    fields = dataclasses.asdict(feature) | {"shape": list(feature.shape)}
    return {name: value for name, value in fields.items() if (name, value) != ("channels", None)}
