"""Reads all tables before a conversion, to find their columns and where large ones can be cut: here
if they are small, else by a job of its own, on the runner of the command."""

import argparse
import hashlib
import itertools
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

from beam_jobs.converter import Source
from beam_jobs.survey import Survey
from converters.command_line import survey
from converters.raw.batches import batches
from converters.table.columns import SKIP
from converters.table.finding import ALL, Finder, Found, placed_pieces
from converters.table.layouts import RawTables, table_of
from converters.table.row_converter import RowConverter
from pipeline.machine import num_cores
from pipeline.raw.pieces import WHOLE, Piece, pieces_of
from pipeline.raw.rows import Table
from pipeline.shards.schema import TableFormat
from pipeline.shards.typed_json import Json
from pipeline.storage.storage import in_parallel

_PIECE_BYTES = 1 << 27  # packing takes a minute; of all tables together, reading them here as well
_MOST_PIECES = 1024  # of all tables, roughly: the launcher merges what is found in each
_VERSION = 1  # of what is found


@dataclass(frozen=True)
class _Look:
    """What a finder finds in a source."""

    finder: Finder
    format: TableFormat

    def __call__(self, source: Source) -> Json:
        return self.finder.find(table_of(source, self.format), source.piece).stated()


class TableSurvey:
    """Reads the tables of a command.

    is_here: whether this process does. pieces: of the tables, by URI, once they were read. files:
    temporary ones, for the commit to remove."""

    def __init__(self, args: argparse.Namespace, raw: RawTables, format: TableFormat) -> None:
        self.pieces = dict[str, Sequence[Piece]]()
        self.files: Sequence[str] = ()
        self._was_read = False
        self._args = args
        self._raw = raw
        self._format = format
        num_bytes = sum(source.bytes for source in raw.whole)
        self._piece_bytes = max(_PIECE_BYTES, num_bytes // _MOST_PIECES)
        is_template = any("template_location" in flag for flag in args.of_beam)
        self.is_here = args.dry_run or is_template or num_bytes <= _PIECE_BYTES

    @property
    def tables(self) -> Sequence[Table]:
        """The tables that are read."""
        return self._raw.tables

    def find(self, finder: Finder) -> Found:
        """What a finder finds in all tables. Raises RawDataError, StorageError; ConversionError if
        a job fails."""
        sources = [
            replace(source, piece=piece)
            for source in self._raw.whole
            for piece in pieces_of(table_of(source, self._format), source.bytes, self._piece_bytes)
        ]
        look = _Look(finder, self._format)
        if self.is_here:
            seen = in_parallel(look, sources, num_cores())
        else:
            seen = self._by_job(look, sources)
        return self._merged(finder, sources, seen)

    def cut(self) -> None:
        """Finds the pieces of large tables, if nothing else was to be found in them."""
        if not (self.is_here or self._was_read):
            self.find(Finder({ALL: SKIP}))

    def _by_job(self, look: _Look, sources: Sequence[Source]) -> Iterable[Json]:
        def size(source: Source) -> int:
            return min(source.bytes, self._piece_bytes)

        stamps = [(source.uri, source.stat, source.piece) for source in sources]
        depends_on = [_VERSION, asdict(look.finder), asdict(look.format), stamps]
        digest = hashlib.blake2b(json.dumps(depends_on).encode(), digest_size=8).hexdigest()
        job = Survey(
            RowConverter(()),
            tuple(self._raw.sources),
            self._args.output,
            look=look,
            groups=[*batches(sources, size, self._piece_bytes)],
            name=f"survey.{digest}",
        )
        self.files = job.paths
        return survey(self._args, job)

    def _merged(self, finder: Finder, sources: Sequence[Source], seen: Iterable[Json]) -> Found:
        """All that was found; a table whose pieces do not meet is read again as a whole."""
        total = Found(finder)
        pairs = zip(sources, seen, strict=True)
        for _, group in itertools.groupby(pairs, lambda pair: pair[0].uri):
            of_table = [(source, Found.of(finder, stated)) for source, stated in group]
            table = table_of(of_table[0][0], self._format)
            placed = [(source.piece, 0, each) for source, each in of_table]
            if not table.is_arrow and len(placed) > 1:
                placed = placed_pieces([each for _, _, each in placed])
                placed = placed or [(WHOLE, 0, finder.find(table))]
            for _, lines, each in placed:
                total.merge(each, lines)
            if len(placed) > 1:
                self.pieces[table.uri] = [piece for piece, _, _ in placed]
        self._was_read = True
        return total
