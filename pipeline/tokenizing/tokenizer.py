"""The interface of tokenizers. Conversion encodes with one, training decodes with the same one."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np


class Tokenizer(Protocol):
    """Numbers for text. Picklable, because workers encode with it."""

    @property
    def name(self) -> str:
        """Its kind: bytes, characters or hugging_face."""
        ...

    @property
    def vocabulary_size(self) -> int:
        """Tokens are numbers from 0 to this, exclusive."""
        ...

    @property
    def start(self) -> int:
        """The special token before the text of every segment."""
        ...

    @property
    def end(self) -> int:
        """The special token after the text of a complete document. May be the same as start."""
        ...

    @property
    def unknown(self) -> int | None:
        """The token for text that it cannot represent; None if it has none."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 [tokens] for each text, without special tokens."""
        ...

    def encode_with_ends(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its tokens and, int32 [tokens], how many of its UTF-8 bytes they represent up to each of them.

        The last token also represents what follows it. May take twice the time of encode_batch."""
        ...

    def decode(self, tokens: Sequence[int] | np.ndarray) -> str:
        """The text of the tokens, without special tokens. Incomplete UTF-8 becomes U+FFFD."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """JSON values that identify it: equal settings give equal tokens. The first is its name."""
        ...


def utf8_ends(text: str) -> np.ndarray:
    """int32 [characters]: the number of UTF-8 bytes up to the end of each character."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return np.cumsum(1 + (codes >= 0x80).astype(np.int32) + (codes >= 0x800) + (codes >= 0x10000), dtype=np.int32)
