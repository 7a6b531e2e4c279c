"""Tokenizers, and how the text of a dataset became tokens:
`read_text_info(directory).tokenizer.decode(tokens)`.

ASCII_ALPHABET: the default alphabet of CharacterTokenizer: printable ASCII, tab and newline.
TEXT_FILE: the name of the file that read_text_info reads. PACKED_TEXT: the name of the schema of
rows of tokens. Packing: "documents" or "concat", see TextInfo.

Needs neither TensorFlow nor JAX; a dataset with a tokenizer.json also needs the library
`tokenizers`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal

import numpy as np

from pipeline.errors import InfeedError, OptionError
from pipeline.shards.typed_json import Count, JsonFile, Number, read_sealed, sealed_line
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from pipeline.tokenizing import (
    HuggingFaceTokenizer,
    Tokenizer,
    Tokens,
    TokensWithEnds,
    open_hugging_face,
    utf8_ends,
)

__all__ = [
    "ASCII_ALPHABET",
    "PACKED_TEXT",
    "TEXT_FILE",
    "ByteTokenizer",
    "CharacterTokenizer",
    "HuggingFaceTokenizer",
    "Packing",
    "TextInfo",
    "Tokenizer",
    "open_hugging_face",
    "read_text_info",
]


TEXT_FILE, TOKENIZER_FILE = "text.json", "tokenizer.json"
PACKED_TEXT = "packed_text"
"""The name of the schema of rows of tokens."""
Packing = Literal["documents", "concat"]
"""How documents share rows: see TextInfo."""
_MEND = "Copy it again, or convert the texts again."
ASCII_ALPHABET = "\t\n" + "".join(map(chr, range(0x20, 0x7F)))
_END, _START, _UNKNOWN = 1, 2, 3  # 0 is padding
_BETWEEN_SEGMENTS = " ┊ "


@dataclass(frozen=True)
class TextInfo:
    """How the text of a dataset became rows of tokens.

    tokenizer: with which the text was encoded. sequence_length: tokens per row, with padding.
    packing: "documents" fills rows with complete documents as far as possible; "concat" cuts them
    wherever a row ends. held_out: the shares of the documents for validation and test, chosen by a
    hash of their text; None if the splits were given."""

    tokenizer: Tokenizer
    sequence_length: int
    packing: Packing
    held_out: tuple[float, float] | None = None

    def text_of(self, values: Mapping[str, Sequence[Any]]) -> str:
        """The text of a row with these values, with a mark between segments; or why it cannot be
        decoded."""
        placed = zip(values["segment_ids"], values["tokens"], strict=True)
        try:
            texts = []
            for number, segment in groupby(placed, itemgetter(0)):
                if number:  # 0 is padding
                    texts.append(self.tokenizer.decode([token for _, token in segment]))
        except InfeedError as e:
            return f"({e})"
        return _BETWEEN_SEGMENTS.join(texts)

    def fields(self) -> dict[str, Any]:
        """The content of text.json, as plain JSON types."""
        fields = {
            "tokenizer": dict(self.tokenizer.settings()),
            "sequence_length": self.sequence_length,
            "packing": self.packing,
        }
        if self.held_out is not None:
            fields["held_out"] = self.held_out
        return fields

    def tokenizer_file(self) -> dict[str, bytes]:
        """Name -> content of tokenizer.json; empty for a tokenizer that has no file."""
        return (
            {TOKENIZER_FILE: self.tokenizer.content()}
            if isinstance(self.tokenizer, HuggingFaceTokenizer)
            else {}
        )

    def files(self) -> dict[str, bytes]:
        """Name -> content of the files to write next to the shards: text.json, and tokenizer.json
        if there is one."""
        return {TEXT_FILE: sealed_line(self.fields()), **self.tokenizer_file()}


@dataclass(frozen=True)
class _Settings:
    """The settings of every kind of tokenizer."""

    name: Literal["bytes", "characters", "hugging_face"]
    alphabet: str | None = None
    digest: str | None = None
    start: Count | None = None
    end: Count | None = None


@dataclass(frozen=True)
class TextFields:
    """text.json, key by key."""

    tokenizer: _Settings
    sequence_length: Number
    packing: Packing
    held_out: tuple[float, float] | None = None

    def info(self, file: JsonFile, directory: str) -> TextInfo:
        """The same as a TextInfo. file: with these fields. directory: of its tokenizer.json. Raises
        file.error."""
        settings = self.tokenizer
        if settings.name == "bytes":
            tokenizer = ByteTokenizer()
        elif settings.name == "characters" and settings.alphabet is not None:
            tokenizer = CharacterTokenizer(settings.alphabet)
        elif settings.digest is None or settings.start is None or settings.end is None:
            raise file.misfit(f"the settings of the tokenizer {settings.name!r} are incomplete.")
        else:
            path = join(directory, TOKENIZER_FILE)
            tokenizer = HuggingFaceTokenizer(path, settings.digest, settings.start, settings.end)
        return TextInfo(tokenizer, self.sequence_length, self.packing, self.held_out)


def read_text_info(directory: str) -> TextInfo:
    """How the text in a dataset directory, local or in a bucket, became tokens. Raises OptionError
    without a text.json."""
    storage = open_storage(directory)
    path = join(directory, TEXT_FILE)
    if not storage.exists(path):
        raise OptionError(
            f"{path} does not exist: {directory} has no packed text. Give the output directory of "
            "python -m converters.text_to_gcs."
        )
    file = JsonFile(path, OptionError, _MEND)
    return read_sealed(file, storage.read(path), TextFields).info(file, directory)


@dataclass(frozen=True)
class ByteTokenizer:
    """Every UTF-8 byte is a token: byte b is b + 3. 0 is padding, 1 the end of a document, 2 the
    start of a segment.

    name, vocabulary_size, start, end, unknown: see Tokenizer."""

    name = "bytes"
    vocabulary_size = 256 + 3
    start = _START
    end = _END
    unknown = None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3 for text in texts]

    def encode_with_ends(self, texts: Sequence[str]) -> TokensWithEnds:
        """See Tokenizer."""
        return [
            (tokens, np.arange(1, len(tokens) + 1, dtype=np.int32))
            for tokens in self.encode_batch(texts)
        ]

    def decode(self, tokens: Tokens) -> str:
        """See Tokenizer."""
        return bytes(token - 3 for token in map(int, tokens) if token >= 3).decode(errors="replace")

    def settings(self) -> Mapping[str, Any]:
        """See Tokenizer."""
        return {"name": self.name}


@dataclass(frozen=True)
class CharacterTokenizer:
    """Every character of the alphabet is a token: the n-th is n + 4, counted from 0.

    0 is padding, 1 the end of a document, 2 the start of a segment, 3 any character outside the
    alphabet. name, start, end, unknown: see Tokenizer. Raises OptionError if a character is
    repeated."""

    alphabet: str = ASCII_ALPHABET

    name = "characters"
    start = _START
    end = _END
    unknown = _UNKNOWN

    def __post_init__(self) -> None:
        if not self.alphabet:
            raise OptionError("the alphabet is empty; it must have at least one character.")
        ((most, count),) = Counter(self.alphabet).most_common(1)
        if count > 1:
            raise OptionError(
                f"the alphabet lists {most!r} {count} times. List each character once."
            )

    @property
    def vocabulary_size(self) -> int:
        """See Tokenizer."""
        return len(self.alphabet) + 4

    @cached_property
    def _sorted(self) -> tuple[np.ndarray, np.ndarray]:
        """The alphabet's code points in ascending order, and the token of each."""
        codes = np.frombuffer(self.alphabet.encode("utf-32-le"), "<u4")
        order = np.argsort(codes)
        return codes[order], (order + 4).astype(np.int32)

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        known, tokens = self._sorted
        encoded = []
        for text in texts:
            codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
            place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
            encoded.append(np.where(known[place] == codes, tokens[place], np.int32(_UNKNOWN)))
        return encoded

    def encode_with_ends(self, texts: Sequence[str]) -> TokensWithEnds:
        """See Tokenizer."""
        return [
            (tokens, utf8_ends(text))
            for tokens, text in zip(self.encode_batch(texts), texts, strict=True)
        ]

    def decode(self, tokens: Tokens) -> str:
        """See Tokenizer."""
        shown = {_UNKNOWN: "\ufffd"} | {
            place + 4: character for place, character in enumerate(self.alphabet)
        }
        return "".join(shown.get(int(token), "") for token in tokens)

    def settings(self) -> Mapping[str, Any]:
        """See Tokenizer."""
        return {"name": self.name, "alphabet": self.alphabet}
