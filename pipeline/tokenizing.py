"""The interface of tokenizers, and those of Hugging Face's library `tokenizers`, from a
tokenizer.json.

Conversion encodes with a tokenizer, training decodes with the same one."""

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from pipeline.checks import did_you_mean
from pipeline.errors import InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.quiet import quiet_libraries
from pipeline.shards.naming import hex_digest
from pipeline.storage.schemes import open_storage

# The special tokens of well-known tokenizers, such as those of Llama, Gemma, BERT and GPT-2.
_STARTS = ("<|begin_of_text|>", "<bos>", "<s>", "[CLS]", "<|startoftext|>", "<|endoftext|>")
_REMEDY = " Repair the tokenizer, or give another."
_ENDS = ("<|end_of_text|>", "<eos>", "</s>", "[SEP]", "<|endoftext|>")


Tokens = Sequence[int] | np.ndarray
TokensWithEnds = list[tuple[np.ndarray, np.ndarray]]


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

    def encode_with_ends(self, texts: Sequence[str]) -> TokensWithEnds:
        """The tokens of each text and, int32 [tokens], how many of its UTF-8 bytes they represent
        up to each of them.

        The last token also represents what follows it. May take twice the time of encode_batch."""
        ...

    def decode(self, tokens: Tokens) -> str:
        """The text of the tokens, without special tokens. Incomplete UTF-8 becomes U+FFFD."""
        ...

    def settings(self) -> Mapping[str, Any]:
        """JSON values that identify it: equal settings give equal tokens. The first is its name."""
        ...


def utf8_ends(text: str) -> np.ndarray:
    """int32 [characters]: the number of UTF-8 bytes up to the end of each character."""
    codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
    return np.cumsum(
        1 + (codes >= 0x80).astype(np.int32) + (codes >= 0x800) + (codes >= 0x10000), dtype=np.int32
    )


@dataclass(frozen=True)
class HuggingFaceTokenizer:
    """The tokenizer in the file `path`, local or in a bucket. digest: of the file, which is checked
    when it is loaded.

    name, start, end: see Tokenizer. Special tokens that occur as text in a document are encoded
    like other text."""

    path: str
    digest: str
    start: int
    end: int

    name = "hugging_face"

    @property
    def unknown(self) -> int | None:
        """See Tokenizer."""
        model = _part(self.path, self.digest, "model")
        token = model.get("unk_token")
        number = (
            _loaded(self.path, self.digest).token_to_id(token)
            if isinstance(token, str)
            else model.get("unk_id")
        )
        return number if isinstance(number, int) else None

    @property
    def vocabulary_size(self) -> int:
        """See Tokenizer."""
        return max(_loaded(self.path, self.digest).get_vocab().values()) + 1  # there may be gaps

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See Tokenizer."""
        encodings = self._encoded("encode_batch_fast", texts)
        return [np.array(encoding.ids, np.int32) for encoding in encodings]

    def encode_with_ends(self, texts: Sequence[str]) -> TokensWithEnds:
        """See Tokenizer."""
        lengths = _bytes_of_tokens(self.path, self.digest)
        if lengths is None:
            return self._with_offsets(texts)
        encoded = [
            (tokens, np.cumsum(lengths[tokens], dtype=np.int32))
            for tokens in self.encode_batch(texts)
        ]
        for number, (text, (_, ends)) in enumerate(zip(texts, encoded, strict=True)):
            if len(ends) and ends[-1] != len(text.encode()):  # a normalizer changed the text
                encoded[number : number + 1] = self._with_offsets([text])
        return encoded

    def _with_offsets(self, texts: Sequence[str]) -> TokensWithEnds:
        """encode_with_ends for any tokenizer. Offsets take as long as the encoding, and 100 bytes
        per token."""
        encodings = self._encoded("encode_batch", texts)
        return [
            (np.array(encoding.ids, np.int32), _ends(text, encoding.offsets))
            for text, encoding in zip(texts, encodings, strict=True)
        ]

    def _encoded(self, method: str, texts: Sequence[str]) -> Sequence[Any]:
        with _explained(f"{self.path} cannot encode a text", _REMEDY):
            return getattr(_loaded(self.path, self.digest), method)(
                list(texts), add_special_tokens=False
            )

    def decode(self, tokens: Tokens) -> str:
        """See Tokenizer."""
        with _explained(f"{self.path} cannot decode tokens", _REMEDY):
            return _loaded(self.path, self.digest).decode(
                [int(token) for token in tokens], skip_special_tokens=True
            )

    def settings(self) -> Mapping[str, Any]:
        """See Tokenizer."""
        return {"name": self.name, "digest": self.digest, "start": self.start, "end": self.end}

    def content(self) -> bytes:
        """The bytes of its file. Raises OptionError if they changed."""
        return _read(self.path, self.digest)


def open_hugging_face(
    path: str, start: str | None = None, end: str | None = None
) -> HuggingFaceTokenizer:
    """The tokenizer of a tokenizer.json. start, end: its tokens for these roles; None finds those
    of known tokenizers.

    Raises OptionError if the file is no tokenizer, or has no such token."""
    digest = hex_digest(open_storage(path).read(path))
    loaded = _loaded(path, digest)
    if dropout := _part(path, digest, "model").get("dropout"):
        raise OptionError(
            f"{path} has a dropout of {dropout}: a text would have other tokens every time. Set it "
            "to null in the file."
        )
    return HuggingFaceTokenizer(
        path,
        digest,
        _role(loaded, path, "--start-token", start, _STARTS),
        _role(loaded, path, "--end-token", end, _ENDS),
    )


@functools.lru_cache(4)
def _bytes_of_tokens(path: str, digest: str) -> np.ndarray | None:
    """int32 [vocabulary]: bytes of each token, for tokenizers whose tokens are sequences of bytes;
    else None.

    Each character of such a token represents one byte, as in the tokenizers of GPT-2 and Llama
    3."""
    if _part(path, digest, "decoder").get("type") != "ByteLevel":
        return None
    vocabulary = _loaded(path, digest).get_vocab()
    lengths = np.zeros(max(vocabulary.values()) + 1, np.int32)
    lengths[list(vocabulary.values())] = [len(token) for token in vocabulary]
    return lengths


@functools.lru_cache(8)
def _part(path: str, digest: str, name: str) -> Mapping[str, Any]:
    part = json.loads(_read(path, digest)).get(name)
    return part if isinstance(part, dict) else {}  # the library also takes lists


def _ends(text: str, offsets: Sequence[tuple[int, int]]) -> np.ndarray:
    """Bytes up to the end of each token; of tokens that share a character, the first has all its
    bytes.

    offsets: of the tokens, in characters of the text."""
    ends = np.append(np.int32(0), utf8_ends(text))[np.array(offsets, np.int64).reshape(-1, 2)[:, 1]]
    ends[-1:] = len(text.encode())
    return np.maximum.accumulate(ends)


def _role(loaded: Any, path: str, option: str, token: str | None, usual: Sequence[str]) -> int:
    """The number of a token; of the first of the `usual` ones that there is, if it is None."""
    for each in usual if token is None else (token,):
        if (number := loaded.token_to_id(each)) is not None:
            return number
    if token is None:
        raise OptionError(
            f"{path} has none of the tokens {', '.join(usual)}. Give one of its own as {option}."
        )
    raise OptionError(
        f"{option}={token}: {path} has no such token.{did_you_mean(token, loaded.get_vocab())}"
    )


@functools.lru_cache(4)
def _loaded(path: str, digest: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as e:
        raise InfeedError(
            f"{path} needs the library tokenizers. Install it: {how_to_install('text')}."
        ) from e
    content = _read(path, digest)
    with (
        _explained(f"{path} is not a tokenizer.json of Hugging Face's tokenizers"),
        quiet_libraries(),
    ):
        loaded = Tokenizer.from_str(content.decode())
    loaded.no_truncation()
    loaded.no_padding()
    loaded.encode_special_tokens = True
    return loaded


@contextlib.contextmanager
def _explained(problem: str, remedy: str = "") -> Iterator[None]:
    """OptionError for the library's errors: plain Exceptions, and panics in Rust, which are only
    BaseExceptions."""
    try:
        yield
    except (InfeedError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as e:
        raise OptionError(f"{problem}: {e}.{remedy}") from e


def _read(path: str, digest: str) -> bytes:
    content = open_storage(path).read(path)
    actual = hex_digest(content)
    if actual != digest:
        raise OptionError(
            f"{path} has changed: its digest is {actual}; expected {digest}. Restore it."
        )
    return content
