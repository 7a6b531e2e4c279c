"""The tokens of many documents, and the rows that pieces of them make. Pure."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from converters.text.packing import Piece
from pipeline.tokenizers import TextInfo

__all__ = ["EncodedDocuments"]

_BATCH_BYTES = 1 << 20  # of text encoded together: enough to use all cores


class EncodedDocuments:
    """The tokens of documents, each with an end token. texts: UTF-8.

    starts: int64 [documents + 1], where in the sequence of all tokens each document begins."""

    def __init__(self, info: TextInfo, texts: Sequence[bytes]) -> None:
        self._info, self._texts = info, texts
        self._ends = dict[int, np.ndarray]()  # of documents that are longer than a row: bytes up to each token
        end = np.array([info.tokenizer.end], np.int32)
        documents = self._encoded()
        self.starts = np.cumsum([0, *(len(tokens) + 1 for tokens in documents)])
        parts = (part for tokens in documents for part in (tokens, end))
        self.tokens = np.concatenate([np.zeros(0, np.int32), *parts])

    def _encoded(self) -> list[np.ndarray]:
        """The tokens of each document. Only where bytes can be cut are they asked which bytes they represent."""
        tokenizer, row = self._info.tokenizer, self._info.sequence_length
        encoded = [np.zeros(0, np.int32)] * len(self._texts)
        is_long = [len(text) > row for text in self._texts]  # no token represents less than a byte
        for group in self._batches([number for number, long in enumerate(is_long) if not long]):
            for number, tokens in zip(group, tokenizer.encode_batch(self._decoded(group)), strict=True):
                encoded[number] = tokens
        for group in self._batches([number for number, long in enumerate(is_long) if long]):
            for number, found in zip(group, tokenizer.encode_with_ends(self._decoded(group)), strict=True):
                encoded[number], ends = found
                if len(ends) >= row:
                    self._ends[number] = ends
        return encoded

    def _batches(self, numbers: Sequence[int]) -> Iterator[Sequence[int]]:
        batch, size = list[int](), 0
        for number in numbers:
            batch.append(number)
            size += len(self._texts[number])
            if size >= _BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _decoded(self, numbers: Sequence[int]) -> list[str]:
        return [self._texts[number].decode() for number in numbers]

    def num_bytes(self, rows: Sequence[Sequence[Piece]]) -> Mapping[Piece, int]:
        """Bytes of text in each piece."""
        sizes = dict[Piece, int]()
        pieces = sorted(itertools.chain.from_iterable(rows))
        for document, of_one in itertools.groupby(pieces, lambda piece: piece.document):
            first, *more = of_one
            if not more:
                sizes[first] = len(self._texts[document])
                continue
            if document not in self._ends:  # short, but at the end of a row
                ((_, self._ends[document]),) = self._info.tokenizer.encode_with_ends(self._decoded([document]))
            ends = np.concatenate([[0], self._ends[document], [len(self._texts[document])]])
            sizes |= {piece: int(ends[piece.end] - ends[piece.begin]) for piece in (first, *more)}
        return sizes

    def num_unknown(self, piece: Piece) -> int:
        """Tokens of a piece that represent text which the tokenizer does not know."""
        if self._info.tokenizer.unknown is None:
            return 0
        return int((self._tokens(piece) == self._info.tokenizer.unknown).sum())

    def rows(self, rows: Sequence[Sequence[Piece]]) -> dict[str, np.ndarray]:
        """tokens, segment_ids and positions, int32 [rows, sequence_length]."""
        tokens, segments, positions = np.zeros((3, len(rows), self._info.sequence_length), np.int32)
        places = np.arange(self._info.sequence_length, dtype=np.int32)
        for row, pieces in enumerate(rows):
            at = 0
            for segment, piece in enumerate(pieces, 1):
                after = at + piece.size
                tokens[row, at] = self._info.tokenizer.start
                tokens[row, at + 1 : after] = self._tokens(piece)
                segments[row, at:after] = segment
                positions[row, at:after] = places[: piece.size]
                at = after
        return {"tokens": tokens, "segment_ids": segments, "positions": positions}

    def _tokens(self, piece: Piece) -> np.ndarray:
        start = self.starts[piece.document]
        return self.tokens[start + piece.begin : start + piece.end]
