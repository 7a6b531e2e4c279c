"""What is inside a record: does it fit the schema, what is its label, does its image decode.

verify and describe look into records with it. It needs no TensorFlow."""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import simplejpeg
from PIL import Image, UnidentifiedImageError

from pipeline.shards.example_decoding import Layout
from pipeline.shards.schema import Labels, Schema

__all__ = ["image_problem", "label_name", "label_problems", "labels_of", "schema_problems"]

MAX_PIXELS = 100_000_000  # 300 MB decoded: above it a file is taken for a decompression bomb
_JPEG_MAGIC = b"\xff\xd8"

Values = Mapping[str, Sequence[Any]]


def schema_problems(schema: Schema, layout: Layout) -> Iterator[str]:
    """Features that are missing, unknown, of another kind or of another count than the schema says."""
    for key in sorted(layout.keys() - schema.features.keys()):
        yield f"{key!r} is not in schema {schema.name!r}"
    for key, feature in schema.features.items():
        found, wanted = layout.get(key), feature.num_values
        if found is None:
            if not feature.optional:
                yield f"{key!r} is missing; schema {schema.name!r} has it in every record"
        elif found.dtype != feature.dtype:
            yield f"{key!r} is of {found.dtype}; its dtype is {feature.dtype}"
        elif wanted is not None and found.num_values != wanted:
            yield f"{key!r} has {found.num_values} values; its shape {list(feature.shape)} holds {wanted}"


def labels_of(labels: Labels | None, values: Values) -> list[int]:
    """The record's labels: one, several or none."""
    found = values.get(labels.key, ()) if labels else ()
    return [label for label in found if isinstance(label, int)]


def label_problems(labels: Labels | None, values: Values) -> Iterator[str]:
    """Labels that have no name."""
    for label in labels_of(labels, values):
        assert labels
        if label_name(labels, label) is None:
            yield f"label {label} in {labels.key!r}; allowed are {labels.base}..{labels.base + len(labels.names) - 1}"


def label_name(labels: Labels, label: int) -> str | None:
    """None for a number outside the range."""
    place = label - labels.base
    return labels.names[place] if 0 <= place < len(labels.names) else None


def image_problem(data: bytes) -> str:
    """What is wrong with an encoded image file, every pixel decoded; "" if nothing is. ~1 ms for a 500x375 JPEG."""
    try:
        if data.startswith(_JPEG_MAGIC):
            header: Any = simplejpeg.decode_jpeg_header(data)
            height, width, colorspace, _ = header
            if height * width <= MAX_PIXELS:
                # strict: Pillow takes a file that ends early, but with an end marker, for whole.
                four = colorspace in ("CMYK", "YCCK")
                simplejpeg.decode_jpeg(data, colorspace="CMYK" if four else "RGB", strict=True)
        else:
            with Image.open(io.BytesIO(data)) as image:
                height, width = image.height, image.width
                image.verify()  # a PNG's checksums: its pixels alone may be whole in a file that ends early
            with Image.open(io.BytesIO(data)) as image:
                if height * width <= MAX_PIXELS:
                    image.load()
    except UnidentifiedImageError:
        return f"no image that Pillow knows: begins with {data[:4].hex(' ') or 'nothing'}"
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as e:
        return f"truncated or damaged image: {str(e)[:200]}"
    return "" if height * width <= MAX_PIXELS else f"{width}x{height} pixels; decoded are up to {MAX_PIXELS:,}"
