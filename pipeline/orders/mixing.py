"""The order of a mixture: every batch draws from several sources by weight; each source is shuffled
separately.

A pure function of (seed, position), like the order of one source. The progress of each source is
computed from the position, which is therefore one number, however many sources there are. Pure
NumPy."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from pipeline.errors import OptionError
from pipeline.orders.order import (
    BatchOrder,
    Position,
    Rows,
    check_sizes,
    check_streams,
    rows_of_batches,
)
from pipeline.orders.shuffle import MIXES, Shuffle, hash_key, permutation

SLOTS = 1_024  # rows of one stream per round, in which the sources are in random order
ROUNDS = 1_024  # per cycle, after which every source has its weight to one millionth


def check_weights(weights: Sequence[float]) -> np.ndarray:
    """The weights, scaled to sum to 1. Raises OptionError unless all are above 0 and none is lost
    in rounding."""
    numbers = np.asarray(weights, np.float64)
    if not len(numbers) or not np.all(np.isfinite(numbers)) or numbers.min() <= 0:
        raise OptionError(
            f"weights={list(weights)}: each source needs a number above 0. Leave other sources out."
        )
    shares = numbers / numbers.sum()
    least = 1 / (SLOTS * ROUNDS)
    if shares.min() < least:
        raise OptionError(
            f"weights={list(weights)}: the smallest share, {shares.min():.2g}, is below "
            f"{least:.2g}."
        )
    return shares


class Shares:
    """How many rows of a stream came from each source: exact for every row, without counting from
    the start.

    A round of 1,024 rows has an integer number of rows of each source, within one row of its
    weight. Rounding rotates through the rounds, so that a cycle of 1,024 rounds matches the weights
    to a millionth."""

    def __init__(self, shares: np.ndarray) -> None:
        # where each source's part of a round ends
        ends = np.append(np.cumsum(shares[:-1]), 1.0) * SLOTS
        # Each round rounds at a different offset; bit reversal spreads the rows of small sources
        # over the cycle.
        bits = ROUNDS.bit_length() - 1
        shifts = np.array(
            [[int(f"{number:0{bits}b}"[::-1], 2) / ROUNDS] for number in range(ROUNDS)]
        )
        edges = np.floor(ends + shifts).astype(np.int64)
        self._counts = np.diff(edges, axis=1, prepend=0)  # int64 [rounds, sources]
        self._before = np.cumsum(np.insert(self._counts, 0, 0, axis=0), axis=0)

    def of_round(self, number: int) -> np.ndarray:
        """int64 [sources]: rows of each source in a round."""
        return self._counts[number % ROUNDS]

    def before(self, number: int) -> np.ndarray:
        """int64 [sources]: rows of each source in all earlier rounds."""
        cycles, rounds = divmod(number, ROUNDS)
        return cycles * self._before[-1] + self._before[rounds]


class MixOrder(BatchOrder):
    """An endless order of batches that mixes sources; it has no epochs. Row r of a batch of B comes
    from stream r // (B / C).

    shuffles: one per source, all with the same number of streams. first_ids: the number of each
    source's first record in the mixture."""

    def __init__(
        self,
        shuffles: Sequence[Shuffle],
        first_ids: Sequence[int],
        shares: np.ndarray,
        global_batch: int,
        *,
        seed: int,
        digest: str,
    ) -> None:
        self.num_records = sum(shuffle.num_records for shuffle in shuffles)
        self.global_batch = global_batch
        self.streams = shuffles[0].streams
        check_sizes(self.num_records, global_batch)
        check_streams(self.streams, global_batch, min(shuffle.num_records for shuffle in shuffles))
        self.shuffles = shuffles
        self.shares = shares
        self._first_ids = first_ids
        self._seed = seed
        self._digest = digest
        self._rounds = Shares(shares)
        self._stream_rows = global_batch // self.streams
        self._round = functools.lru_cache(2 * self.streams)(self._mixed_round)  # 1 KB each

    def __reduce__(self) -> tuple[Any, ...]:  # without the cache, which cannot be pickled
        make = partial(MixOrder, seed=self._seed, digest=self._digest)
        return make, (self.shuffles, self._first_ids, self.shares, self.global_batch)

    @property
    def settings(self) -> dict[str, int | str]:
        """Everything that the order depends on except the data."""
        return {"seed": self._seed, "streams": self.streams, "mixture": self._digest}

    def advance(self, position: Position, batches: int) -> Position:
        """The position that many batches later."""
        return Position(0, position.records + batches * self._stream_rows)

    def rows(self, position: Position, ranges: Iterable[range], batches: int = 1) -> Rows:
        """These row ranges of the batch at a position, in the order given, then of the batches that
        follow."""
        records = partial(self._records, position)
        ids, epochs = rows_of_batches(records, ranges, self._stream_rows, batches)
        return Rows(ids, epochs, self._seed)

    def _records(
        self, position: Position, stream: int, first: int, count: int
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        at = position.records + first
        while count:
            number, inside = divmod(at, SLOTS)
            sources = self._round(stream, number)
            had = self._rounds.before(number) + np.bincount(
                sources[:inside], minlength=len(self.shuffles)
            )
            here = sources[inside : inside + count]
            yield self._drawn(stream, had, here)
            count -= len(here)
            at += len(here)

    def _drawn(
        self, stream: int, had: np.ndarray, sources: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Epochs and record ids of rows that each take the next record of their source."""
        counts = np.bincount(sources)
        pieces = []
        for source in np.flatnonzero(counts).tolist():
            shuffle = self.shuffles[source]
            first = self._first_ids[source]
            epoch, at = divmod(int(had[source]), shuffle.length(stream))
            pieces += [
                (e, ids + first)
                for e, ids in shuffle.records(stream, epoch, at, int(counts[source]))
            ]
        rows = np.argsort(sources, kind="stable")  # source by source, like the pieces
        ids = np.empty(len(sources), np.int64)
        epochs = np.empty(len(sources), np.int64)
        ids[rows] = np.concatenate([ids for _, ids in pieces])
        epochs[rows] = np.repeat([epoch for epoch, _ in pieces], [len(ids) for _, ids in pieces])
        return epochs, ids

    def _mixed_round(self, stream: int, number: int) -> np.ndarray:
        counts = self._rounds.of_round(number)
        sources = np.repeat(np.arange(len(counts), dtype=np.int16), counts)
        return sources[permutation(SLOTS, hash_key(self._seed, MIXES, stream, number))]
