"""Records generated in memory for --tiny, labelled images and packed text: enough to try a recipe
without any data."""

import io
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from pipeline.description import Description
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords
from pipeline.tokenizers import TextInfo

__all__ = ["Encoding", "tiny_images"]

Encoding = Literal["jpeg", "png"]
"""The format of image files."""
RECORDS = (
    130  # no multiple of a usual batch size, so the last batch of an evaluation has rows of padding
)
ENCODED, LABEL = "image/encoded", "image/class/label"  # in the shards of infeed's converters
CELLS = 4  # rows and columns of a class's pattern
NOISE = 24  # gray levels
SUBJECTS = ("the shard", "a record", "the host", "one device", "the batch", "an epoch")
VERBS = ("reads", "holds", "counts", "follows", "splits", "proves")


def tiny_images(
    split: str,
    shape: tuple[int, int, int],
    num_classes: int,
    *,
    label_base: int = 0,
    encoding: Encoding = "png",
) -> ExampleRecords:
    """130 images with labels in turn: a coarse pattern of the class, which all splits share, and
    noise of the split.

    The features are those of infeed's converters: image/encoded, an image of `shape` (height,
    width, 1 or 3 channels); image/filename; image/class/label, from label_base. Pixels depend only
    on the arguments; the bytes of a JPEG also on the version of Pillow."""
    schema = Schema(
        "tiny",
        {
            ENCODED: Feature("bytes", content="image", channels=shape[2]),
            "image/filename": Feature("bytes", content="text"),
            LABEL: Feature("int64"),
        },
    )
    names = tuple(f"class {number}" for number in range(num_classes))
    examples = _examples(split, shape, num_classes, label_base, encoding)
    return ExampleRecords(f"{split} (--tiny)", schema, examples, Labels(LABEL, label_base, names))


def _examples(
    split: str, shape: tuple[int, int, int], num_classes: int, label_base: int, encoding: Encoding
) -> Iterator[dict[str, Any]]:
    height, width, channels = shape
    cells = np.random.default_rng(0).integers(
        NOISE, 256 - NOISE, (num_classes, CELLS, CELLS, channels)
    )
    rows = np.arange(height) * CELLS // height
    columns = np.arange(width) * CELLS // width
    noise = _random(split)
    for number in range(RECORDS):
        pattern = cells[number % num_classes][rows][:, columns]
        pixels = (pattern + noise.integers(-NOISE, NOISE, shape)).astype(np.uint8)
        yield {
            ENCODED: _encoded(pixels, encoding),
            "image/filename": f"{number:03d}.{encoding}".encode(),
            LABEL: number % num_classes + label_base,
        }


def _encoded(pixels: Any, encoding: Encoding) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(buffer, encoding)
    return buffer.getvalue()


def tiny_text(split: str, info: TextInfo) -> ExampleRecords:
    """130 rows of short English sentences: documents of one to three, in rows as long as `info` has
    them.

    The features and totals are those of converters.text_to_gcs, and depend only on the
    arguments."""
    row = (info.sequence_length,)
    features = {name: Feature("int64", row) for name in ("tokens", "segment_ids", "positions")}
    schema = Schema("packed_text", {**features, "num_bytes": Feature("int64")})
    examples, counts = zip(*_rows(split, info), strict=True)
    totals = {
        "num_bytes": sum(example["num_bytes"] for example in examples),
        "num_tokens": sum(counts),
    }
    description = Description(schema, text=info)
    return ExampleRecords(
        f"{split} (--tiny)", schema, examples, totals=totals, description=description
    )


def _rows(split: str, info: TextInfo) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The features of every row, and how many of its tokens count."""
    rng = _random(split)
    text = _document(rng)
    for _ in range(RECORDS):
        tokens, segments, positions = np.zeros((3, info.sequence_length), np.int64)
        at = number = size = 0
        while True:
            (encoded,) = info.tokenizer.encode_batch([text])
            after = at + len(encoded) + 2
            if after > info.sequence_length:
                break
            number += 1
            tokens[at:after] = [info.tokenizer.start, *encoded, info.tokenizer.end]
            segments[at:after] = number
            positions[at:after] = range(after - at)
            at = after
            size += len(text.encode())
            text = _document(rng)
        example = {
            "tokens": tokens,
            "segment_ids": segments,
            "positions": positions,
            "num_bytes": size,
        }
        yield example, at - number


def _document(rng: np.random.Generator) -> str:
    def sentence() -> str:
        return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(SUBJECTS)}."

    return " ".join(sentence() for _ in range(rng.integers(1, 3)))


def _random(split: str) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(blake2b(split.encode(), digest_size=8).digest()))
