"""Packed text generated in memory, for --tiny: enough to try a language model without any data."""

from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np

from pipeline.shards.schema import Feature, Schema
from pipeline.sources.example_records import ExampleRecords
from pipeline.tokenizers import TextInfo

RECORDS = 130  # as tiny_images
SUBJECTS = ("the shard", "a record", "the host", "one device", "the batch", "an epoch")
VERBS = ("reads", "holds", "counts", "follows", "splits", "proves")


def tiny_text(split: str, info: TextInfo) -> ExampleRecords:
    """130 rows of short English sentences: documents of one to three, in rows as long as `info` has them.

    The features and totals are those of converters.text_to_gcs, and depend only on the arguments."""
    row = (info.sequence_length,)
    features = {name: Feature("int64", row) for name in ("tokens", "segment_ids", "positions")}
    schema = Schema("packed_text", {**features, "num_bytes": Feature("int64")})
    rows = [*_rows(split, info)]
    totals = {
        "num_bytes": sum(fields["num_bytes"] for fields, _ in rows),
        "num_tokens": sum(count for _, count in rows),
    }
    return ExampleRecords(f"{split} (--tiny)", schema, (fields for fields, _ in rows), totals=totals)


def _rows(split: str, info: TextInfo) -> Iterator[tuple[Mapping[str, Any], int]]:
    """The features of every row, and how many of its tokens count."""
    rng = np.random.default_rng(int.from_bytes(blake2b(split.encode(), digest_size=8).digest()))
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
            segments[at:after], positions[at:after] = number, range(after - at)
            at, size, text = after, size + len(text.encode()), _document(rng)
        fields = {"tokens": tokens, "segment_ids": segments, "positions": positions, "num_bytes": size}
        yield fields, at - number


def _document(rng: np.random.Generator) -> str:
    def sentence() -> str:
        return f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(SUBJECTS)}."

    return " ".join(sentence() for _ in range(rng.integers(1, 3)))
