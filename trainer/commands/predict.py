"""infeed predict WORKDIR FILES...: predicts photographs, or rows of tables, that were never
converted.

The recipe that trained in WORKDIR reads them as its evaluation reads converted records; it needs no
data. FILES are images, tables (csv, tsv, jsonl, Parquet, Arrow) or folders of them; they and
WORKDIR may be on a disk or gs://. A file that cannot be read is left out, which is said at the end,
with exit code 1. A recipe that is not infeed's has to be given as --recipe: what a work directory
names may be anyone's code."""

if __name__ == "__main__":
    from pipeline.commands.program import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.commands.command import Console, Parser, exit_with, say, table
from pipeline.errors import (
    EvaluationError,
    OptionError,
    RawDataError,
    Reject,
    SchemaError,
    StorageError,
    printable,
)
from pipeline.logs import errors_only
from pipeline.raw.cells import MISSING, class_number, is_missing
from pipeline.raw.image_files import orientation
from pipeline.raw.rows import TABLE_SUFFIXES, table_rows
from pipeline.shards.example import Value
from pipeline.sizes import MiB, counted, format_bytes
from pipeline.sources.in_memory import ExampleRecords
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, in_parallel, join
from trainer.checkpointing.kept_data import records_like
from trainer.checkpointing.listing import check_checkpoint
from trainer.commands.names import is_ours
from trainer.recipe import DataRecipe
from trainer.reports.progress import RecordsLine

if TYPE_CHECKING:
    from pipeline.inputs.input_info import BadRecord
    from trainer.inputs import InputContext
    from trainer.trainer import Trainer

EXAMPLES = ("model photo.jpg", "model photos --json --output=predictions.jsonl")
"""The command lines at the end of its help."""
MOST_BYTES = 1024 * MiB
MOST_OF_FILE = 512 * MiB
MOST_ROWS = 1_000_000
AT_ONCE = 16
REFUSED_NAMED = 20
EXISTS = "--output={} exists. Remove it, or give another name."
WITHOUT_MEANING = ("index", "label", "label_name")  # in predictions of records that have no label


MakeRecords = Callable[..., ExampleRecords]
"""(name, examples, places) -> records, as records_like of trainer.checkpointing.kept_data."""


class Raw(NamedTuple):
    """A file, or a row of a table, and its record; or why there is none. rotated: EXIF rotates it,
    which is ignored.

    cells: those that are classes."""

    name: str
    features: Mapping[str, Value]
    error: str = ""
    rotated: bool = False
    cells: Mapping[str, Any] = {}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Raises InfeedError."""
    parser = Parser(
        "trainer.commands.predict", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints")
    )
    parser.add_argument(
        "workdir", metavar="WORKDIR", help="the work directory of a run, local or gs://bucket/dir"
    )
    parser.add_argument(
        "files", metavar="FILES", nargs="+", help="images, tables, or folders of them"
    )
    parser.add_argument("--step", help="which checkpoint: a number, or best (default: the newest)")
    parser.add_argument(
        "--recipe", metavar="MODULE:CLASS", help="the recipe of the training, if it is not infeed's"
    )
    parser.add_argument(
        "--apply-orientation", action="store_true", help="turn images upright according to EXIF"
    )
    parser.add_argument(
        "--json", action="store_true", help="print lines of JSON rather than a table"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write lines of JSON to a file, local or gs://"
    )
    args = parser.parse_args(argv)
    step = int(args.step) if (args.step or "").isdecimal() else args.step
    if not isinstance(step, int) and step not in (None, "best"):
        raise OptionError(f"--step={args.step}: give the number of a step, or best.")
    if args.output is not None and open_storage(args.output).exists(args.output):
        raise OptionError(EXISTS.format(args.output))
    paths = [path for given in args.files for path in _files(given)]
    recipe, records = _recipe(args.workdir, args.recipe)
    raw = list(_read(recipe, records, paths, upright=args.apply_orientation))
    bad = [each for each in raw if each.error]
    good = [each for each in raw if not each.error]
    with errors_only():  # what they say of records, the end says of files
        lines = [*_predicted(recipe, records, good, step, bad)] if good else []
    _show(lines, args.output, as_json=args.json)
    if rotated := sum(each.rotated for each in good):
        print(
            f"note: EXIF rotates {rotated} of the pictures, which was ignored. --apply-orientation "
            "turns them upright: give it if the conversion had it.",
            file=sys.stderr,
        )
    for column, numbers in recipe.row_classes.items():
        cells = [each.cells.get(column) for each in good]
        if unknown := [
            f"{each}"
            for each in cells
            if class_number(numbers, each) == MISSING and not is_missing(each)
        ]:
            text = f"note: values of {column} that the model has never seen count as missing: "
            some = ", ".join([*dict.fromkeys(unknown)][:5])
            print(printable(f"{text}{some} ({counted(len(unknown), 'row')})"), file=sys.stderr)
    return _told(bad, len(raw))


def _recipe(workdir: str, name: str | None) -> tuple[Any, MakeRecords]:
    """The recipe of the training, and what makes records that it reads."""
    from trainer.commands.loading import recipe_class
    from trainer.commands.recorded import recipe_without_data

    check_checkpoint(workdir, required=True)
    if name is not None and not is_ours(name):
        sys.path.append(str(Path.cwd()))  # last, so that it replaces no package
    given = recipe_class(name) if name else None
    recipe = recipe_without_data(workdir, given, mesh=None, fast_dev_run=None)
    if not isinstance(recipe, DataRecipe) or recipe.description is None:
        raise OptionError(
            f"the recipe of {workdir} reads no records with named features, so it cannot read "
            "files."
        )
    return recipe, partial(
        records_like, recipe.description, schema=recipe.row_schema(recipe.description.schema)
    )


def _files(given: str) -> list[str]:
    storage = open_storage(given)
    files = [*_found(storage, given, set())] if storage.exists(given) else []
    if not files:
        why = "has no files" if Path(given).is_dir() else "does not exist"
        raise OptionError(f"{given} {why}. Give images, tables, or folders of them.")
    return files


def _found(storage: Storage, path: str, seen: set[str]) -> Iterator[str]:
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
            yield from _found(storage, join(path, name), seen)


def _read(
    recipe: Any, records: MakeRecords, paths: Sequence[str], *, upright: bool
) -> Iterator[Raw]:
    """The records of files, in order. Raises OptionError for more bytes than are kept in memory."""
    total = 0
    for first in range(0, len(paths), AT_ONCE):
        for found in in_parallel(
            lambda path: [*_records(recipe, records, path, upright)], paths[first : first + AT_ONCE]
        ):
            total += sum(
                len(value)
                for each in found
                for value in each.features.values()
                if isinstance(value, bytes)
            )
            if total > MOST_BYTES:
                raise OptionError(
                    f"the files have more than {format_bytes(MOST_BYTES)}, which are kept in "
                    "memory. Give fewer; or convert them, and predict with --mode predict of the "
                    "trainer."
                )
            yield from found


def _records(recipe: Any, records: MakeRecords, path: str, upright: bool) -> Iterator[Raw]:
    storage = open_storage(path)
    try:
        if storage.stat(path).bytes > MOST_OF_FILE:
            yield Raw(
                path, {}, f"more than {format_bytes(MOST_OF_FILE)}, which are not read into memory"
            )
        elif not path.endswith(TABLE_SUFFIXES):
            data = storage.read(path)
            rotated = not upright and orientation(data) != 1
            yield _record(
                records, path, lambda: recipe.file_record(data, upright=upright)
            )._replace(rotated=rotated)
        else:
            for count, row in enumerate(table_rows(storage, path, None)):
                if count == MOST_ROWS:
                    raise OptionError(
                        f"{path} has more than {MOST_ROWS:,} rows, which are kept in memory. Give "
                        "a part."
                    )
                name = f"{path}:{row.line}"
                read = partial(recipe.row_record, row.cells)
                raw = Raw(name, {}, row.error) if row.error else _record(records, name, read)
                yield raw._replace(
                    cells={column: row.cells.get(column) for column in recipe.row_classes}
                )
    except (RawDataError, StorageError) as error:
        yield Raw(path, {}, str(error))


def _record(records: MakeRecords, name: str, read: Callable[[], Mapping[str, Value]]) -> Raw:
    try:
        features = read()
        records(name, [features])  # SchemaError unless they are a record
        return Raw(name, features)
    except (Reject, SchemaError) as error:
        return Raw(name, {}, str(error))


def _predicted(
    recipe: Any, records: MakeRecords, raw: Sequence[Raw], step: Any, bad: list[Raw]
) -> Iterator[Mapping[str, Any]]:
    """The predictions of these records, in order. Those that the recipe's evaluation cannot read
    are added to bad."""
    import jax

    from trainer.commands.recorded import ONE_DEVICE
    from trainer.trainer import Trainer

    names = [each.name for each in raw]
    classes = recipe.class_names()
    recipe = recipe.on(records("the files", [each.features for each in raw], names))
    # A few files need no full batch, and rows are cut over the devices as --mode predict cuts them.
    batch = min(len(raw), recipe.trainer.resolved_predict_batch_size)
    devices = jax.local_device_count()
    # The work directory of the model is only read: it may be someone else's.
    with RecordsLine("predicted", total=len(raw)) as progress, TemporaryDirectory() as scratch:
        # Whatever mesh and batch size trained the model.
        settings = {
            **ONE_DEVICE,
            "global_batch_size": -(-batch // devices) * devices,
            "workdir": scratch,
        }
        trainer = Trainer(recipe.task(), replace(recipe.trainer, **settings))
        for record in _good(trainer, recipe, names, step, bad):
            values = {
                key.removeprefix("_"): value.tolist() for key, value in sorted(record.items())
            }
            index = values["index"]
            values = recipe.prediction(
                {key: value for key, value in values.items() if key not in WITHOUT_MEANING}
            )
            known = {
                f"{key}_name": labels.name_of(values[key])
                for key, labels in classes.items()
                if key in values
            }
            progress.add(1)
            yield {
                "file": names[index],
                **{key: name for key, name in known.items() if name is not None},
                **values,
            }


def _good(
    trainer: "Trainer", recipe: Any, names: Sequence[str], step: Any, bad: list[Raw]
) -> Iterator[dict[str, Any]]:
    """What the trainer predicts of the records that the recipe's evaluation can read; adds the
    others to bad."""
    from trainer.inputs import as_function

    inputs = list[Any]()
    made = as_function(recipe.eval_input)

    def eval_input(ctx: "InputContext") -> Any:
        inputs.append(made(replace(ctx, max_masked=len(names))))
        return inputs[-1]

    def refused() -> Sequence["BadRecord"]:
        return [*(getattr(getattr(inputs[-1], "info", None), "quarantine", None) or ())]

    try:
        yield from trainer.predict(eval_input, step=step, checkpoint_path=recipe.trainer.workdir)
    except EvaluationError:
        if len(refused()) < len(names):  # an epoch of bad records only has nothing to count
            raise
    bad.extend(Raw(names[record.record_id], {}, record.reason) for record in refused())


def _show(lines: Sequence[Mapping[str, Any]], output: str | None, *, as_json: bool) -> None:
    console = Console()
    if output is not None:
        if not open_storage(output).create(
            output, "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        ):
            raise OptionError(EXISTS.format(output))
        say(console, f"{len(lines)} predictions written to {output}")
    elif as_json:
        for line in lines:
            print(json.dumps(line))
    elif lines:
        # a class may have no name
        columns = dict.fromkeys(column for line in lines for column in line)
        console.print(
            table(columns, ([_cell(line.get(column, "")) for column in columns] for line in lines))
        )


def _cell(value: Any) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _told(bad: Sequence[Raw], count: int) -> int:
    """Names the files that were left out, of so many, and why, each reason once; the exit code."""
    reasons = dict[str, list[str]]()
    for each in bad:
        reasons.setdefault(each.error.removeprefix(f"{each.name}: "), []).append(each.name)
    for reason, (name, *others) in [*reasons.items()][:REFUSED_NAMED]:
        also = f" and {len(others)} more" if others else ""
        print(printable(f"{name}{also}: {reason}"), file=sys.stderr)
    if bad:
        print(f"error: left out {len(bad)} of {count}, which could not be read.", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    exit_with(main)
