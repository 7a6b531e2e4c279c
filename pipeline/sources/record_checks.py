"""Checks of what a record contains, which verify, index and converters share: does it match the
schema, what are its labels, does its image decode?

Needs no TensorFlow."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from PIL import UnidentifiedImageError

from pipeline.errors import Reject, SchemaError
from pipeline.raw.jpeg import UNREADABLE, decode_image, decode_jpeg, open_image
from pipeline.shards.example_decoding import FeatureShape, example_shapes
from pipeline.shards.schema import Labels, Schema

_JPEG_MAGIC = b"\xff\xd8"


def schema_problems(schema: Schema, shapes: Mapping[str, FeatureShape]) -> Iterator[str]:
    """Features that are missing or unknown, or whose dtype or number of values differs from the
    schema."""
    for key in sorted(shapes.keys() - schema.features.keys()):
        yield f"{key!r} is not in schema {schema.name!r}"
    for key, feature in schema.features.items():
        entry = shapes.get(key)
        num_values = feature.num_values
        if entry is None:
            if not feature.optional:
                yield f"{key!r} is missing; schema {schema.name!r} has it in every record"
        elif entry.dtype != feature.dtype:
            yield f"{key!r} is of {entry.dtype}; its dtype is {feature.dtype}"
        elif num_values is not None and entry.num_values != num_values:
            yield (
                f"{key!r} has {entry.num_values} values; its shape {list(feature.shape)} holds "
                f"{num_values}"
            )


def payload_problem(schema: Schema, payload: bytes) -> str:
    """Why a payload is not a record of the schema; "" if it is, as every payload is of an opaque
    one."""
    try:
        return "" if schema.opaque else "; ".join(schema_problems(schema, example_shapes(payload)))
    except SchemaError as e:
        return str(e).rstrip(".")


def label_problems(labels: Labels, values: Mapping[str, Sequence[Any]]) -> Iterator[str]:
    """Labels outside the range of known classes."""
    for label in labels.of(values):
        if labels.name_of(label) is None:
            yield (
                f"label {label} in {labels.key!r} is outside "
                f"{labels.base}..{labels.base + labels.count - 1}"
            )


def image_problem(data: bytes) -> str:
    """Decodes every pixel of an image file (~1 ms for a 500x375 JPEG). Returns the problem, or
    ""."""
    try:
        if data.startswith(_JPEG_MAGIC):
            decode_jpeg(data)
            return ""
        with open_image(data) as image:
            if image.format == "EPS":
                return "an EPS file, which Pillow would decode with Ghostscript: not read"
            image.verify()  # a PNG's checksums: the pixels of a truncated file may be complete
        decode_image(data)
    except Reject as e:
        return str(e)
    except UnidentifiedImageError:
        return (
            f"not an image that Pillow recognizes: it starts with {data[:4].hex(' ') or 'nothing'}"
        )
    except UNREADABLE as e:
        return f"truncated or damaged image: {str(e)[:200]}"
    return ""
