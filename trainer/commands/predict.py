"""infeed predict WORKDIR FILES...: predicts photographs, or rows of tables, that were never
converted.

The recipe that trained in WORKDIR reads them as its evaluation reads converted records; it needs no
data. FILES are images, tables (csv, tsv, jsonl, Parquet, Arrow) or folders of them; they and
WORKDIR may be on a disk or in a bucket. A file that cannot be read is left out, which is said at
the end, with exit code 1. A recipe that is not infeed's has to be given as --recipe: what a work
directory names may be anyone's code."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pipeline.console.console import Console, say, table
from pipeline.console.interrupts import Exit
from pipeline.console.parser import Parser, exit_with
from pipeline.errors import (
    EvaluationError,
    OptionError,
    printable,
)
from pipeline.logs import errors_only
from pipeline.raw.cells import MISSING, class_number
from pipeline.sizes import counted
from pipeline.storage.schemes import open_storage
from trainer.checkpointing.listing import check_checkpoint, which_step
from trainer.commands import is_ours
from trainer.commands.new_files import Raw, files_of, read_files, records_of
from trainer.recipe import DataRecipe
from trainer.reports.progress import RecordsLine

if TYPE_CHECKING:
    from pipeline.inputs.quarantine import BadRecord
    from trainer.inputs import InputContext
    from trainer.trainer import Trainer

EXAMPLES = ("model photo.jpg", "model photos --json --output=predictions.jsonl")
"""The command lines at the end of its help."""
REFUSED_NAMED = 20
EXISTS = "--output={} exists. Remove it, or give another name."
WITHOUT_MEANING = ("index", "label", "label_name")  # in predictions of records that have no label


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code. Raises InfeedError."""
    parser = Parser(
        "trainer.commands.predict", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints")
    )
    parser.add_argument(
        "workdir",
        metavar="WORKDIR",
        help="the work directory of a run, local or in a bucket (gs:// or s3://)",
    )
    parser.add_argument(
        "files", metavar="FILES", nargs="+", help="images, tables, or folders of them"
    )
    parser.add_argument("--step", help="which checkpoint: a number, or best (default: the newest)")
    parser.add_argument(
        "--recipe", metavar="MODULE:CLASS", help="the recipe of the run, if it is not infeed's"
    )
    parser.add_argument(
        "--apply-orientation",
        action="store_true",
        help="turn images upright according to EXIF, even if the conversion did not",
    )
    parser.add_argument(
        "--json", action="store_true", help="print lines of JSON rather than a table"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="write lines of JSON to a file, local, or in a bucket"
    )
    args = parser.parse_args(argv)
    step = which_step(args.step)
    if args.output is not None and open_storage(args.output).exists(args.output):
        raise OptionError(EXISTS.format(args.output))
    paths = [path for name in args.files for path in files_of(name)]
    recipe = _recipe(args.workdir, args.recipe)
    upright = args.apply_orientation or recipe.schema.upright
    raw = list(read_files(recipe, paths, upright=upright))
    bad = [each for each in raw if each.error]
    good = [each for each in raw if not each.error]
    with errors_only():  # what they say of records, the end says of files
        lines = [*_predicted(recipe, good, step, bad)] if good else []
    _show(lines, args.output, as_json=args.json)
    if rotated := sum(each.rotated for each in good):
        print(
            f"note: EXIF rotates {rotated} of the pictures, which was ignored, as by the "
            "conversion. --apply-orientation turns them upright.",
            file=sys.stderr,
        )
    for column, numbers in recipe.row_classes.items():
        cells = [each.cells.get(column) for each in good]
        if unknown := [
            str(cell)
            for cell in cells
            if class_number(numbers, cell) == MISSING
            and recipe.schema.table.number(cell) is not None
        ]:
            text = f"note: values of {column} that the model has never seen count as missing: "
            some = ", ".join([*dict.fromkeys(unknown)][:5])
            print(printable(f"{text}{some} ({counted(len(unknown), 'row')})"), file=sys.stderr)
    return _report_bad(bad, len(raw))


def _recipe(workdir: str, name: str | None) -> DataRecipe:
    """The recipe of the training, which has a description."""
    from trainer.commands.loading import recipe_class
    from trainer.commands.recorded import recipe_without_data

    check_checkpoint(workdir, required=True)
    if name is not None and not is_ours(name):
        sys.path.append(str(Path.cwd()))  # last, so that it replaces no package
    kind = recipe_class(name) if name else None
    recipe = recipe_without_data(workdir, kind, mesh=None, fast_dev_run=None)
    if not isinstance(recipe, DataRecipe) or recipe.description is None:
        raise OptionError(
            f"the recipe of {workdir} reads no records with named features, so it cannot read "
            "files."
        )
    return recipe


def _predicted(
    recipe: DataRecipe, raw: Sequence[Raw], step: Any, bad: list[Raw]
) -> Iterator[Mapping[str, Any]]:
    """The predictions of these records, in order. Those that the recipe's evaluation cannot read
    are added to bad."""
    import jax

    from trainer.commands.recorded import ONE_DEVICE
    from trainer.commands.running import plain_values
    from trainer.trainer import Trainer

    classes = recipe.class_names()
    recipe = recipe.on(records_of(recipe, "the files", raw))
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
        for record in _good(trainer, recipe, raw, step, bad):
            values = plain_values(record)
            file = raw[values["index"]].name
            values = recipe.prediction(
                {key: value for key, value in values.items() if key not in WITHOUT_MEANING}
            )
            names = dict[str, str]()
            for key, labels in classes.items():
                if key in values and (name := labels.name_of(values[key])) is not None:
                    names[f"{key}_name"] = name
            progress.add(1)
            yield {"file": file, **names, **values}


def _good(
    trainer: "Trainer", recipe: DataRecipe, raw: Sequence[Raw], step: Any, bad: list[Raw]
) -> Iterator[dict[str, Any]]:
    """What the trainer predicts of the records that the recipe's evaluation can read; adds the
    others to bad."""
    from trainer.inputs import as_function

    inputs = list[Any]()
    open_input = as_function(recipe.eval_input)

    def eval_input(ctx: "InputContext") -> Any:
        inputs.append(open_input(replace(ctx, max_masked=len(raw))))
        return inputs[-1]

    def refused() -> Sequence["BadRecord"]:
        return getattr(getattr(inputs[-1], "info", None), "quarantine", None) or ()

    try:
        yield from trainer.predict(eval_input, step=step, checkpoint_path=recipe.trainer.workdir)
    except EvaluationError:
        if len(refused()) < len(raw):  # an epoch of bad records only has nothing to count
            raise
    bad.extend(Raw(raw[record.record_id].name, {}, record.reason) for record in refused())


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
        blank = dict.fromkeys(columns, "")
        rows = [map(_cell, {**blank, **line}.values()) for line in lines]
        console.print(table(columns, rows))


def _cell(value: Any) -> object:
    if not isinstance(value, float):
        return value
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:.12g}"


def _report_bad(bad: Sequence[Raw], count: int) -> int:
    """Prints which of `count` files were left out, each reason once. Returns the exit code."""
    reasons = dict[str, list[str]]()
    for each in bad:
        reasons.setdefault(each.error.removeprefix(f"{each.name}: "), []).append(each.name)
    for reason, (name, *others) in [*reasons.items()][:REFUSED_NAMED]:
        also = f" and {len(others)} more" if others else ""
        print(printable(f"{name}{also}: {reason}"), file=sys.stderr)
    if bad:
        print(f"error: left out {len(bad)} of {count}, which could not be read.", file=sys.stderr)
    return Exit.BAD_DATA if bad else Exit.DONE


if __name__ == "__main__":
    exit_with(main)
