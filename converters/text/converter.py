"""Packs documents into records of tokens: rows of one length, with the segments of several
documents each.

Pure: reads raw data through a Storage, returns values."""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from beam_jobs.converter import Pack, Source, files_of
from beam_jobs.rows.references import File, Reference, encoded
from converters.raw.batches import batches
from converters.raw.splits import HeldOut
from converters.text.documents import Document, DocumentFormat, documents
from converters.text.packing import EncodedDocuments, Piece, packed_rows
from pipeline.shards.example_block import encode_examples
from pipeline.shards.schema import Feature, Schema, stated
from pipeline.storage.storage import Storage
from pipeline.tokenizers import PACKED_TEXT, HuggingFaceTokenizer, TextInfo

_WINDOW_BYTES = 32 * 10**6  # of text; see SLICE_BYTES
_ROWS_AT_ONCE = 1024
_UNKNOWN = "some text is unknown to the tokenizer and became its unknown token"
_TOTALS = ("num_bytes", "num_tokens", "num_segments", "num_documents", "num_unknown")


class _KeyedDocument(NamedTuple):
    """A document, its file and its key."""

    key: str
    file: File
    document: Document


@dataclass(frozen=True)
class TextConverter:
    """The converter of documents. See Packer.

    Keys of records count the rows of a source, which is named by its first file: so adding a
    document changes the keys of the rows after it, up to 16 MB of text."""

    info: TextInfo
    reading: DocumentFormat = field(default_factory=DocumentFormat)

    name = "text"
    labels = None
    transforms = False

    def core_seconds_per_gb(self, _name: str) -> float:
        """See Converter."""
        return 170  # measured: 110 for bytes, 170 for characters, 340 for a tokenizer.json

    @property
    def schema(self) -> Schema:
        settings = self.info.tokenizer.settings()
        identity = hashlib.blake2b(
            repr(sorted(settings.items())).encode(), digest_size=8
        ).hexdigest()
        row = (self.info.sequence_length,)
        features = {
            "tokens": Feature(
                "int64", row, doc=f"tokens of text.json: {settings['name']}, {identity}"
            ),
            "segment_ids": Feature(
                "int64", row, doc="number of the segment in its row, from 1; 0 is padding"
            ),
            "positions": Feature("int64", row, doc="place in the segment, from 0"),
            "num_bytes": Feature("int64", doc="bytes of UTF-8 text in the row"),
        }
        return Schema(PACKED_TEXT, features)

    @property
    def held_out(self) -> HeldOut | None:
        """Which documents are held out, by a hash of their text."""
        return self.info.held_out and HeldOut(*self.info.held_out, by="content")

    @property
    def worker_files(self) -> Sequence[str]:
        tokenizer = self.info.tokenizer
        return (tokenizer.path,) if isinstance(tokenizer, HuggingFaceTokenizer) else ()

    def digest_fields(self) -> Mapping[str, Any]:
        return {
            "converter": "text/1",
            "tokenizer": dict(self.info.tokenizer.settings()),
            "sequence_length": self.info.sequence_length,
            "packing": self.info.packing,
            "held_out": self.info.held_out,
            **asdict(self.reading, dict_factory=stated),
        }

    def files(self) -> Mapping[str, bytes]:
        return self.info.files()

    def windows(self, storage: Storage, source: Source) -> Iterator[Sequence[_KeyedDocument]]:
        keyed = self._documents(storage, source)
        return batches(keyed, lambda each: len(each.document.raw), _WINDOW_BYTES)

    def _documents(self, storage: Storage, source: Source) -> Iterator[_KeyedDocument]:
        """The documents of the source's split."""
        held_out = self.held_out
        files = files_of(source)
        root = files[0].uri.removesuffix(source.tag)
        end = None if source.group else source.offset + source.bytes
        for file in files:
            name = file.uri.removeprefix(root)
            for document in documents(storage, file.uri, self.reading, source.offset, end):
                # by its hash, so that copies of a document are in one split
                if held_out is None or source.split == held_out.split_of(
                    hashlib.blake2b(document.raw, digest_size=16).hexdigest()
                ):
                    yield _KeyedDocument(f"{source.split}/{name}:{document.offset}", file, document)

    def pack(self, source: Source, number: int, window: Sequence[_KeyedDocument]) -> Pack:
        texts = [each.document.raw for each in window if not each.document.error]
        packing = EncodedDocuments(self.info, texts)
        num_tokens = np.diff(packing.starts).tolist()
        rows = packed_rows(num_tokens, self.info.sequence_length, self.info.packing)
        columns = {
            "num_bytes": _sums(rows, packing.num_bytes(rows).__getitem__),
            "num_tokens": _sums(rows, lambda piece: piece.end - piece.begin),
            "num_segments": np.array([len(row) for row in rows], np.int64),
            "num_documents": _sums(rows, lambda piece: int(not piece.begin)),
            "num_unknown": _sums(rows, packing.num_unknown),
        }
        encoded_rows = list[tuple[np.ndarray, np.ndarray]]()
        for begin in range(0, len(rows), _ROWS_AT_ONCE):
            some = slice(begin, begin + _ROWS_AT_ONCE)
            arrays = {**packing.rows(rows[some]), "num_bytes": columns["num_bytes"][some]}
            encoded_rows.append(encode_examples(self.schema, arrays))
        place = f"{source.split}/{source.tag}:{source.offset}"
        keys = [encoded(f"{place}:{number}:{row:06d}") for row in range(len(rows))]
        data = b"".join(records.tobytes() for records, _ in encoded_rows)
        sizes = np.concatenate([np.zeros(0, np.int64), *(sizes for _, sizes in encoded_rows)])
        offsets = np.full(len(rows), source.offset)
        unusable = [
            Reference(key, file, document.offset, 0, document.error, {})
            for key, file, document in window
            if document.error
        ]
        return Pack(keys, data, sizes, offsets, columns, unusable)

    def tally(self, columns: Mapping[str, np.ndarray]) -> tuple[Counter[str], Counter[str]]:
        """See Packer."""
        notes = Counter({_UNKNOWN: int((columns["num_unknown"] > 0).sum())})
        return +notes, Counter({name: int(columns[name].sum()) for name in _TOTALS})


def _sums(rows: Iterable[Iterable[Piece]], value: Any) -> np.ndarray:
    """int64 [rows]: the sum of a value over the pieces of each row."""
    return np.array([sum(map(value, row)) for row in rows], np.int64)
