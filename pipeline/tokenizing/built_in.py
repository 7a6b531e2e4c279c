"""The tokenizers that need no file and no library: bytes, and the characters of a fixed alphabet."""

import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pipeline.errors import OptionError
from pipeline.tokenizing.tokenizer import utf8_ends

ASCII_ALPHABET = "\t\n" + "".join(map(chr, range(0x20, 0x7F)))
"""The printable ASCII characters, tab and newline: the default alphabet."""
_END, _START, _UNKNOWN = 1, 2, 3  # 0 is padding
assert set(ASCII_ALPHABET) == set(string.printable) - set("\r\v\f")


@dataclass(frozen=True)
class ByteTokenizer:
    """Every UTF-8 byte is a token: byte b is b + 3. 0 is padding, 1 the end of a document, 2 the start of a segment.

    name, vocabulary_size, start, end, unknown: see Tokenizer."""

    name = "bytes"
    vocabulary_size = 256 + 3
    start, end, unknown = _START, _END, None

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.int32) + 3 for text in texts]

    def encode_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """See Tokenizer."""
        return [(tokens, np.arange(1, len(tokens) + 1, dtype=np.int32)) for tokens in self.encode_batch(texts)]

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """See Tokenizer."""
        return bytes(token - 3 for token in map(int, tokens) if token >= 3).decode(errors="replace")

    def settings(self) -> Mapping[str, Any]:
        """See Tokenizer."""
        return {"name": self.name}


@dataclass(frozen=True)
class CharacterTokenizer:
    """Every character of the alphabet is a token: the n-th is n + 4, counted from 0.

    0 is padding, 1 the end of a document, 2 the start of a segment, 3 any character outside the alphabet.
    name, start, end, unknown: see Tokenizer.
    Raises OptionError if a character is repeated."""

    alphabet: str = ASCII_ALPHABET

    name = "characters"
    start, end, unknown = _START, _END, _UNKNOWN

    def __post_init__(self) -> None:
        if not self.alphabet:
            raise OptionError("the alphabet is empty; it must have at least one character.")
        ((most, count),) = Counter(self.alphabet).most_common(1)
        if count > 1:
            raise OptionError(f"the alphabet lists {most!r} {count} times. List each character once.")

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

    def encode_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """See Tokenizer."""
        return [(tokens, utf8_ends(text)) for tokens, text in zip(self.encode_batch(texts), texts, strict=True)]

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """See Tokenizer."""
        shown = {_UNKNOWN: "\ufffd"} | {place + 4: character for place, character in enumerate(self.alphabet)}
        return "".join(shown.get(int(token), "") for token in tokens)

    def settings(self) -> Mapping[str, Any]:
        """See Tokenizer."""
        return {"name": self.name, "alphabet": self.alphabet}
