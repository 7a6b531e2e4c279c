"""Images and tables that were never converted, as records that a recipe reads.

Each is read as the conversion reads it. What cannot be read has an error in place of a record."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import OptionError, RawDataError, Reject, SchemaError, StorageError
from pipeline.raw.image_files import orientation
from pipeline.raw.rows import Table, is_table
from pipeline.shards.example import Value
from pipeline.sizes import MiB, format_bytes
from pipeline.sources.in_memory import ExampleRecords
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, in_parallel, join
from trainer.checkpointing.kept_data import records_like
from trainer.recipe import DataRecipe

MOST_BYTES = 1024 * MiB
MOST_OF_FILE = 512 * MiB
MOST_ROWS = 1_000_000
AT_ONCE = 16


class Raw(NamedTuple):
    """A file, or a row of a table, and its record; or why there is none.

    rotated: EXIF rotates it, which is ignored.
    cells: those that are classes."""

    name: str
    features: dict[str, Value]
    error: str = ""
    rotated: bool = False
    cells: Mapping[str, Any] = {}


def files_of(path: str) -> list[str]:
    """The file at a path, or the files in and below it. Raises OptionError if there is none."""
    storage = open_storage(path)
    files = [*_below(storage, path, set())] if storage.exists(path) else []
    if not files:
        why = "has no files" if Path(path).is_dir() else "does not exist"
        raise OptionError(f"{path} {why}. Give images, tables, or folders of them.")
    return files


def _below(storage: Storage, path: str, seen: set[str]) -> Iterator[str]:
    """The path, or the files in and below it, in the order of their names, without those that begin
    with a dot.

    Looks into each folder once: links may lead to one above."""
    if (real := os.path.realpath(path)) in seen:
        return
    seen.add(real)
    try:
        files, folders = storage.entries(path)
    except StorageError:  # a file; or it cannot be read, which is an error later
        yield path
        return
    yield from (join(path, name) for name in sorted(files) if not name.startswith("."))
    for name in folders:
        if not name.startswith("."):
            yield from _below(storage, join(path, name), seen)


def read_files(recipe: DataRecipe, paths: Sequence[str], *, upright: bool) -> Iterator[Raw]:
    """The records of files, in order. upright: turn images upright according to EXIF. Raises
    OptionError for more bytes than are kept in memory."""
    total = 0
    for first in range(0, len(paths), AT_ONCE):
        for of_file in in_parallel(
            lambda path: [*_raw(recipe, path, upright)], paths[first : first + AT_ONCE]
        ):
            values = (value for each in of_file for value in each.features.values())
            total += sum(len(value) for value in values if isinstance(value, bytes))
            if total > MOST_BYTES:
                raise OptionError(
                    f"the files have more than {format_bytes(MOST_BYTES)}, which are kept in "
                    "memory. Give fewer; or convert them, and predict with --mode predict of the "
                    "trainer."
                )
            yield from of_file


def _raw(recipe: DataRecipe, path: str, upright: bool) -> Iterator[Raw]:
    storage = open_storage(path)
    units = {name: feature.unit for name, feature in recipe.schema.features.items()}
    try:
        if storage.stat(path).bytes > MOST_OF_FILE:
            yield Raw(
                path, {}, f"more than {format_bytes(MOST_OF_FILE)}, which are not read into memory"
            )
        elif not is_table(path):
            data = storage.read(path)
            raw = _record(recipe, path, lambda: recipe.file_record(data, upright=upright))
            yield raw._replace(rotated=not upright and orientation(data) != 1)
        else:
            for count, row in enumerate(Table(path, recipe.schema.table).rows(units=units)):
                if count == MOST_ROWS:
                    raise OptionError(
                        f"{path} has more than {MOST_ROWS:,} rows, which are kept in memory. Give "
                        "a part."
                    )
                name = f"{path}:{row.line}"
                read = partial(recipe.row_record, row.cells)
                raw = Raw(name, {}, row.error) if row.error else _record(recipe, name, read)
                cells = {column: row.cells.get(column) for column in recipe.row_classes}
                yield raw._replace(cells=cells)
    except (RawDataError, StorageError) as error:
        yield Raw(path, {}, str(error))


def _record(recipe: DataRecipe, name: str, read: Callable[[], Mapping[str, Value]]) -> Raw:
    try:
        raw = Raw(name, dict(read()))
        records_of(recipe, name, [raw])
        return raw
    except (Reject, SchemaError) as error:
        return Raw(name, {}, str(error))


def records_of(recipe: DataRecipe, name: str, raw: Sequence[Raw]) -> ExampleRecords:
    """Records that the recipe reads. Raises SchemaError unless their features are a record's."""
    description = recipe.description
    assert description is not None
    schema = recipe.row_schema(recipe.schema)
    features = [each.features for each in raw]
    return records_like(description, name, features, [each.name for each in raw], schema)
