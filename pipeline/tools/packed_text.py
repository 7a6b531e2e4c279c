"""What describe shows of packed text: totals of each split, and the text of a row."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from pipeline.errors import InfeedError, OptionError, StorageError
from pipeline.shards.manifest import Manifest
from pipeline.tokenizers import PACKED_TEXT, TextInfo, read_text_info

TOTALS = ("split", "documents", "text bytes", "tokens", "bytes per token", "tokens per row", "rows filled")
_BETWEEN = " ┊ "  # segments


def find_text_info(manifest: Manifest) -> TextInfo | None:
    """How the text of the dataset became tokens; None if it contains no packed text. Raises OptionError."""
    return read_text_info(manifest.directory) if manifest.schema.name == PACKED_TEXT else None


def text_problem(manifest: Manifest) -> str:
    """What is wrong with text.json or tokenizer.json; "" if both are intact, or if there is no packed text."""
    try:
        info = find_text_info(manifest)
        if info:
            info.files()
    except (OptionError, StorageError) as e:
        return str(e)
    return ""


def text_totals(manifest: Manifest, info: TextInfo) -> Iterator[Sequence[str]]:
    """For each split the values of TOTALS. Rows filled: the share of places that are not padding."""
    for name, entry in sorted(manifest.splits.items()):
        documents, size, tokens, segments = (
            entry.totals.get(f"num_{what}", 0) for what in ("documents", "bytes", "tokens", "segments")
        )
        places = entry.num_records * info.sequence_length
        yield (
            name,
            f"{documents:,}",
            f"{size:,}",
            f"{tokens:,}",
            f"{size / tokens:.3f}" if tokens else "",
            f"{tokens / entry.num_records:.1f}" if entry.num_records else "",
            f"{(tokens + segments) / places:.2%}" if places else "",
        )


def row_text(info: TextInfo, values: Mapping[str, Sequence[Any]]) -> str:
    """The text of a row, with a mark between segments; or why it cannot be decoded."""
    placed = zip(values["segment_ids"], values["tokens"], strict=True)
    try:
        texts = [
            info.tokenizer.decode([token for _, token in segment])
            for number, segment in groupby(placed, lambda place: place[0])
            if number
        ]
    except InfeedError as e:
        return f"({e})"
    return _BETWEEN.join(texts)
