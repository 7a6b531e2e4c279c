"""Tokenizers, and how the text of a dataset became tokens: `read_text_info(directory).tokenizer.decode(tokens)`.

ASCII_ALPHABET: the default alphabet of CharacterTokenizer: printable ASCII, tab and newline. TEXT_FILE: the name of the
file that read_text_info reads. PACKED_TEXT: the name of the schema of rows of tokens. Packing: "documents" or "concat",
see TextInfo.

Needs neither TensorFlow nor JAX; a dataset with a tokenizer.json also needs the library `tokenizers`."""

from pipeline.tokenizing.built_in import ASCII_ALPHABET, ByteTokenizer, CharacterTokenizer
from pipeline.tokenizing.hugging_face import HuggingFaceTokenizer, open_hugging_face
from pipeline.tokenizing.text_info import PACKED_TEXT, TEXT_FILE, Packing, TextInfo, read_text_info
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
