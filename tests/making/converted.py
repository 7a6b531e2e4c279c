"""What a conversion has written: its records, and its ledger of those that it rejected."""

import json
from pathlib import Path
from typing import Any

from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import read_frames

__all__ = ["ledger_of", "records_of", "single"]


def records_of(out: Path, split: str = "train") -> list[dict[str, Any]]:
    """The features of each record, shard by shard."""
    shards = (path.read_bytes() for path in sorted(out.glob(f"{split}-*-of-*")))
    return [decode_example(frame.payload) for data in shards for frame in read_frames([data], None)]


def single(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first value of each feature."""
    return [{key: value[0] for key, value in record.items()} for record in records]


def ledger_of(out: Path, split: str = "train") -> dict[str, str]:
    """Key -> why it was rejected."""
    lines = map(json.loads, (out / f"_rejects/{split}.jsonl").read_text().splitlines())
    return {line["key"]: line["error"] for line in lines}
