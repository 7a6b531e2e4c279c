"""Datasets whose names, labels and texts look like markup."""

import io

import numpy as np
from PIL import Image

from pipeline.shards.example import encode_example
from pipeline.shards.frames import crc32c, frame
from pipeline.shards.index_writer import write_index
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
from pipeline.shards.naming import shard_file
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import PACKED_TEXT, ByteTokenizer, TextInfo

__all__ = ["MARKUP", "RECORDS", "dataset_with_markup", "text_with_markup"]

MARKUP = "<script>alert(1)</script><b>bold</b> {{ 7 * 7 }} $x$ &amp;"
RECORDS = 12


def dataset_with_markup(directory):
    """Twelve records with an image, a text, a label and a number each, all named by MARKUP; returns the directory."""
    features = {
        "image": Feature("bytes", content="image"),
        MARKUP: Feature("bytes", content="text", doc=MARKUP),
        "file_name": Feature("bytes", content="text"),
        "label": Feature("int64"),
        "height": Feature("float32"),
    }
    schema, rng = Schema("marked", features), np.random.default_rng(0)
    payloads = []
    for number in range(RECORDS):
        image = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (40, 90 + number, 3)).astype(np.uint8)).save(
            image, "JPEG"
        )
        values = {
            "image": image.getvalue(),
            MARKUP: MARKUP.encode(),
            "file_name": f"{number}{MARKUP}".encode(),
        }
        payloads.append(
            encode_example(schema, values | {"label": number % 2, "height": float(rng.normal())})
        )
    return _write(directory, schema, payloads, Labels("label", 0, (MARKUP, "plain")))


def text_with_markup(directory):
    """Three rows of packed text, each of which is MARKUP; returns the directory."""
    text = MARKUP.encode()
    length = len(text) + 1
    row = Feature("int64", (length,))
    schema = Schema(
        PACKED_TEXT,
        {"tokens": row, "segment_ids": row, "positions": row, "num_bytes": Feature("int64")},
    )
    info = TextInfo(ByteTokenizer(), length, "documents")
    tokens = [info.tokenizer.start, *info.tokenizer.encode_batch([MARKUP])[0].tolist()]
    values = {
        "tokens": tokens,
        "segment_ids": [1] * length,
        "positions": range(length),
        "num_bytes": len(text),
    }
    for name, content in info.files().items():
        (directory / name).write_bytes(content)
    return _write(directory, schema, [encode_example(schema, values)] * 3)


def _write(directory, schema, payloads, labels=None):
    name, data = shard_file("train", 0, 1), b"".join(map(frame, payloads))
    (directory / name).write_bytes(data)
    rows = np.array([(len(payload), crc32c(payload)) for payload in payloads], np.uint32)
    storage = open_storage(str(directory))
    crc = write_index(storage, str(directory), "train", len(rows), [rows])
    shard = ShardEntry(name, len(payloads), len(data), crc32c(data))
    split = SplitEntry((shard,), crc, "0" * 32, "0" * 32, seed=0)
    made = Manifest(MARKUP, schema, {"train": split}, labels, MARKUP)
    update_manifest(storage, str(directory), lambda _: made)
    return str(directory)
