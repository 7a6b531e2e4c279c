"""Packs documents into rows of tokens of equal length. Pure.

A segment is a document or a piece of one: the start token, then text tokens, then the end token if
the document ends there. A document is cut only if it is longer than a row or, with "concat", where
the row is full."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from converters.raw.batches import batches
from pipeline.tokenizers import Packing, TextInfo

_BATCH_BYTES = 1 << 20  # of text encoded together: enough to use all cores


class Piece(NamedTuple):
    """Tokens begin..end of a document, counted with its end token, which follow a start token in
    the row."""

    document: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """Tokens in the row, with the start token."""
        return self.end - self.begin + 1


def packed_rows(num_tokens: Sequence[int], row_length: int, packing: Packing) -> list[list[Piece]]:
    """The pieces of each row, in the order of the documents.

    num_tokens: of each document, with its end token. row_length: at least 2, for a start token and
    one other."""
    if packing == "concat":
        return _concatenated(num_tokens, row_length)
    rows = _best_fit(_pieces(num_tokens, row_length - 1), row_length)
    for row in rows:
        row.sort()
    return rows


def _concatenated(num_tokens: Sequence[int], row_length: int) -> list[list[Piece]]:
    rows: list[list[Piece]] = []
    free = 0
    for document, total in enumerate(num_tokens):
        begin = 0
        while begin < total:
            if free < 2:  # a start token alone would be no segment
                rows.append([])
                free = row_length
            end = min(total, begin + free - 1)
            rows[-1].append(Piece(document, begin, end))
            free -= end - begin + 1
            begin = end
    return rows


def _pieces(num_tokens: Sequence[int], most: int) -> Iterator[Piece]:
    """Documents, those of more than `most` tokens cut into pieces of that many and a rest."""
    for document, total in enumerate(num_tokens):
        for begin in range(0, total, most):
            yield Piece(document, begin, min(total, begin + most))


def _best_fit(pieces: Iterator[Piece], row_length: int) -> list[list[Piece]]:
    """Best-fit decreasing: the longest piece first, each into the fullest row that has space for
    it.

    The bits of a number say which amounts of free space some row has, so a search takes a
    microsecond."""
    rows: list[list[Piece]] = []
    by_space: list[list[int]] = [[] for _ in range(row_length + 1)]
    spaces = 0
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        fitting = spaces >> piece.size
        if fitting:
            space = piece.size + (fitting & -fitting).bit_length() - 1
            row = by_space[space].pop()
            if not by_space[space]:
                spaces &= ~(1 << space)
            rows[row].append(piece)
        else:
            row = len(rows)
            space = row_length
            rows.append([piece])
        left = space - piece.size
        by_space[left].append(row)
        spaces |= 1 << left
    return rows


class EncodedDocuments:
    """The tokens of documents, each with an end token. texts: UTF-8.

    starts: int64 [documents + 1], where in the sequence of all tokens each document begins."""

    def __init__(self, info: TextInfo, texts: Sequence[bytes]) -> None:
        self._info = info
        self._texts = texts
        # of documents that are longer than a row: bytes up to each token
        self._ends = dict[int, np.ndarray]()
        end = np.array([info.tokenizer.end], np.int32)
        documents = self._encoded()
        self.starts = np.cumsum([0, *(len(tokens) + 1 for tokens in documents)])
        parts = (part for tokens in documents for part in (tokens, end))
        self.tokens = np.concatenate([np.zeros(0, np.int32), *parts])

    def _encoded(self) -> list[np.ndarray]:
        """The tokens of each document. Only where bytes can be cut are they asked which bytes they
        represent."""
        tokenizer = self._info.tokenizer
        row = self._info.sequence_length
        none = np.zeros(0, np.int32)
        encoded = [none] * len(self._texts)
        sizes = [len(text) for text in self._texts]
        for is_long in (False, True):
            # no token represents less than a byte
            numbers = (number for number, size in enumerate(sizes) if (size > row) == is_long)
            for group in batches(numbers, sizes.__getitem__, _BATCH_BYTES):
                texts = [self._texts[number].decode() for number in group]
                pairs = (
                    tokenizer.encode_with_ends(texts)
                    if is_long
                    else ((tokens, none) for tokens in tokenizer.encode_batch(texts))
                )
                for number, (tokens, ends) in zip(group, pairs, strict=True):
                    encoded[number] = tokens
                    if len(ends) >= row:
                        self._ends[number] = ends
        return encoded

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
                texts = [self._texts[document].decode()]
                ((_, self._ends[document]),) = self._info.tokenizer.encode_with_ends(texts)
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
