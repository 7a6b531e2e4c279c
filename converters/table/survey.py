"""Reads all tables before a conversion, to find their columns and where large ones can be cut: here
if they are small, else by a job of its own, on the runner of the command."""

import argparse
import hashlib
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from beam_jobs.converter import Source
from beam_jobs.survey import Survey
from converters.command_line import survey
from converters.raw.batches import batches
from converters.table.columns import SKIP
from converters.table.finding import ALL, END, Finder, Found
from converters.table.layouts import RawTables, table_of
from converters.table.row_converter import RowConverter
from pipeline.console.console import Console
from pipeline.machine import num_cores
from pipeline.raw.pieces import Piece, pieces_of
from pipeline.shards.schema import TableFormat
from pipeline.shards.typed_json import Json
from pipeline.storage.storage import in_parallel

_PIECE_BYTES = 1 << 27  # packing takes a minute; of all tables together, reading them here as well
_MOST_PIECES = 1024  # of all tables, roughly: the launcher merges what is found in each
_VERSION = 2  # of what is found
_NONE = Finder({ALL: SKIP})


TableSurvey = tuple[Found, Mapping[str, Sequence[Piece]]]
"""What was found in tables, and the pieces of large ones, by URI."""


@dataclass(frozen=True)
class _Look:
    """What a finder finds in a source."""

    finder: Finder
    format: TableFormat

    def __call__(self, source: Source) -> Json:
        return self.finder.find(table_of(source, self.format), source.piece).stated()


def survey_tables(
    args: argparse.Namespace, raw: RawTables, format: TableFormat, finder: Finder | None
) -> TableSurvey:
    """Reads the tables of a command. finder: None if nothing is to be found in them but, unless
    they are small, where to cut them.

    Raises RawDataError, StorageError; ConversionError if a job fails."""
    num_bytes = sum(source.bytes for source in raw.whole)
    is_template = any("template_location" in flag for flag in args.of_beam)
    is_here = args.dry_run or is_template or num_bytes <= _PIECE_BYTES
    if not finder and (is_here or args.image_column):
        return Found(_NONE), {}
    piece_bytes = max(_PIECE_BYTES, num_bytes // _MOST_PIECES)

    def pieces(source: Source) -> list[Source]:
        cut = pieces_of(table_of(source, format), source.bytes, piece_bytes)
        return [replace(source, piece=piece) for piece in cut]

    sources = [*itertools.chain.from_iterable(in_parallel(pieces, raw.whole))]
    look = _Look(finder or _NONE, format)
    if is_here:
        with Console().status("looking at the columns"):
            return _merged(look, sources, in_parallel(look, sources, num_cores()))
    groups = [*batches(sources, lambda each: min(each.bytes, piece_bytes), piece_bytes)]
    name = f"survey.{_digest(look, groups)}"
    job = Survey(
        RowConverter(()), tuple(raw.sources), args.output, look=look, groups=groups, name=name
    )
    return _merged(look, sources, survey(args, job))


def _digest(look: _Look, groups: Sequence[Sequence[Source]]) -> str:
    """16 hex digits, of all that decides what is found."""
    stamps = [[(each.uri, each.tag, each.stat, each.piece) for each in group] for group in groups]
    fields = json.dumps([_VERSION, asdict(look), stamps])
    return hashlib.blake2b(fields.encode(), digest_size=8).hexdigest()


def _merged(look: _Look, sources: Sequence[Source], seen: Iterable[Json]) -> TableSurvey:
    """All that was seen. A piece of text that does not begin where the one before ends is read
    again from there: a guess was wrong."""
    total = Found(look.finder)
    pieces = defaultdict[str, list[Piece]](list)
    stop, lines = END, 0
    for source, stated in zip(sources, seen, strict=True):
        found = Found.of(look.finder, stated)
        piece, table = source.piece, table_of(source, look.format)
        if table.is_arrow or not piece.begin:
            lines = 0
            piece = piece if table.is_arrow else piece._replace(end=found.stop[0])
        elif stop == END:
            continue
        else:
            if not found.first or found.first[0] != stop[0]:
                with Console().status(f"reading a part of {source.uri} again"):
                    found = look.finder.find(table, piece, stop[0])
            assert found.first
            begin, line = found.first
            lines += stop[1] - line
            piece = Piece(begin, found.stop[0], lines + line - 1)
        total.merge(found, lines)
        stop = found.stop
        if piece.begin < piece.end:
            pieces[source.uri].append(piece)
    return total, {uri: each for uri, each in pieces.items() if len(each) > 1}
