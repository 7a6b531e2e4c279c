"""Tokenizers, and how the text of a dataset became tokens: `read_text_info(directory).tokenizer.decode(tokens)`.

ASCII_ALPHABET: the default alphabet of CharacterTokenizer: printable ASCII, tab and newline. TEXT_FILE: the name of the
file that read_text_info reads. PACKED_TEXT: the name of the schema of rows of tokens. Packing: "documents" or "concat",
see TextInfo.

Needs neither TensorFlow nor JAX; a dataset with a tokenizer.json also needs the library `tokenizers`."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import OptionError
from pipeline.shards.typed_json import Count, JsonFile, Number, sealed_line, unsealed
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from pipeline.tokenizing.built_in import ASCII_ALPHABET, ByteTokenizer, CharacterTokenizer
from pipeline.tokenizing.hugging_face import HuggingFaceTokenizer, open_hugging_face
from pipeline.tokenizing.tokenizer import Tokenizer

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


@dataclass(frozen=True)
class TextInfo:
    """How the text of a dataset became rows of tokens.

    tokenizer: with which the text was encoded. sequence_length: tokens per row, with padding. packing: "documents"
    fills rows with complete documents as far as possible; "concat" cuts them wherever a row ends. validation_fraction:
    of the documents, chosen by a hash of their text; None if the splits were given."""

    tokenizer: Tokenizer
    sequence_length: int
    packing: Packing
    validation_fraction: float | None = None

    def files(self) -> dict[str, bytes]:
        """Name -> content of the files to write next to the shards: text.json, and tokenizer.json if there is one."""
        fields = _Fields(
            _Settings(**self.tokenizer.settings()), self.sequence_length, self.packing, self.validation_fraction
        )
        files = {TEXT_FILE: sealed_line(_without_nones(dataclasses.asdict(fields)))}
        if isinstance(self.tokenizer, HuggingFaceTokenizer):
            files[TOKENIZER_FILE] = self.tokenizer.content()
        return files


@dataclass(frozen=True)
class _Settings:
    """The settings of every kind of tokenizer."""

    name: Literal["bytes", "characters", "hugging_face"]
    alphabet: str | None = None
    digest: str | None = None
    start: Count | None = None
    end: Count | None = None


@dataclass(frozen=True)
class _Fields:
    """text.json, key by key."""

    tokenizer: _Settings
    sequence_length: Number
    packing: Packing
    validation_fraction: float | None = None


def read_text_info(directory: str) -> TextInfo:
    """How the text in a dataset directory, local or on gs://, became tokens. Raises OptionError without a text.json."""
    storage, path = open_storage(directory), join(directory, TEXT_FILE)
    if not storage.exists(path):
        raise OptionError(
            f"{path} does not exist: {directory} has no packed text. Give the output directory of "
            "python -m converters.text_to_gcs."
        )
    file = JsonFile(path, OptionError, _MEND)
    fields, _ = unsealed(file, storage.read(path))
    read = file.typed(fields, _Fields)
    tokenizer = _tokenizer(file, directory, read.tokenizer)
    return TextInfo(tokenizer, read.sequence_length, read.packing, read.validation_fraction)


def _tokenizer(file: JsonFile, directory: str, settings: _Settings) -> Tokenizer:
    if settings.name == "bytes":
        return ByteTokenizer()
    if settings.name == "characters" and settings.alphabet is not None:
        return CharacterTokenizer(settings.alphabet)
    if settings.digest is None or settings.start is None or settings.end is None:
        raise file.misfit(f"the settings of the tokenizer {settings.name!r} are incomplete.")
    return HuggingFaceTokenizer(join(directory, TOKENIZER_FILE), settings.digest, settings.start, settings.end)


def _without_nones(fields: Mapping[str, Any]) -> dict[str, Any]:
    settings = {name: value for name, value in fields["tokenizer"].items() if value is not None}
    return {name: value for name, value in {**fields, "tokenizer": settings}.items() if value is not None}
