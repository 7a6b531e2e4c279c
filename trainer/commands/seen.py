"""infeed seen WORKDIR --step N: lists the records that a training step saw, from the run's history.

The order of records is a pure function of the seed and the position, so nothing had to be stored
per step, and a step after any number of restarts has its records. WORKDIR may be on a disk or
gs://. Needs neither JAX nor TensorFlow."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import json
from collections.abc import Iterable, Iterator, Sequence

from rich.table import Table

from pipeline import logs
from pipeline.console.console import Console, say, table, tracked
from pipeline.console.parser import Parser, exit_with
from pipeline.errors import OptionError
from pipeline.sizes import counted
from pipeline.storage.storage import join
from trainer.reports.metrics_lines import metrics_lines
from trainer.reports.seen_records import SeenRecord, SeenStep, seen_steps
from trainer.reports.segments import read_history
from trainer.reports.workdir import TRAIN

EXAMPLES = ("model --step=20", "model --step=20 --json")
ROWS, MOST_STEPS = 20, 10_000
LONG_STEPS = 10


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser(
        "trainer.commands.seen",
        __doc__,
        EXAMPLES,
        ("trainer.commands.report", "trainer.checkpoints"),
    )
    parser.add_argument(
        "workdir",
        metavar="WORKDIR",
        help="the work directory of a run, local or in a bucket (gs:// or s3://)",
    )
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the training step")
    parser.add_argument("--to", type=int, metavar="M", help="the last step (default: only step N)")
    parser.add_argument(
        "--rows", type=int, help=f"records of each step to show (default: {ROWS}; with --json, all)"
    )
    parser.add_argument("--json", action="store_true", help="print a line of JSON per record")
    parser.add_argument(
        "--data-dir", metavar="DIR", help="where the data are now, if they were moved"
    )
    args = parser.parse_args(argv)
    steps = range(args.step, (args.step if args.to is None else args.to) + 1)
    if not 0 < len(steps) <= MOST_STEPS:
        raise OptionError(
            f"--step={args.step} --to={args.to}: give 1 to {MOST_STEPS:,} steps, the first one "
            "first."
        )
    if args.rows is not None and args.rows < 1:
        raise OptionError(f"--rows={args.rows}: must be at least 1.")
    logs.show()
    most = args.rows or (None if args.json else ROWS)
    batches = seen_steps(
        read_history(args.workdir), args.workdir, steps, data_dir=args.data_dir, most=most
    )
    if args.json:
        for seen in _with_progress(batches, len(steps)):
            for record in seen.records:
                print(json.dumps(record.to_json()))
        return
    losses = {
        step: values.get("loss") for step, values in metrics_lines(join(args.workdir, TRAIN), steps)
    }
    for seen in _with_progress(batches, len(steps)):
        _print(seen, losses.get(seen.step))


def _print(seen: SeenStep, loss: float | None) -> None:
    console = Console()
    shown = len(seen.records)
    reported = " (not in metrics.jsonl)" if loss is None else f", mean loss {loss:.6g}"
    part = f"; the first {shown}:" if shown < seen.num_rows else ""
    say(console, f"Step {seen.step:,}{reported}: {counted(seen.num_rows, 'record')}{part}")
    console.print(_table(seen.records))


def _with_progress(batches: Iterator[SeenStep], steps: int) -> Iterable[SeenStep]:
    """Shows progress if it may take long, and if lines are not printed to the same terminal."""
    hidden = steps < LONG_STEPS or Console().is_terminal
    return tracked(batches, "reading records", steps, hidden=hidden)


def _table(records: Sequence[SeenRecord]) -> Table:
    """The records without columns that are empty, and without the epoch if all have the same."""
    epochs = {record.epoch for record in records}
    rows = [_row(record) for record in records]
    columns = [
        name
        for name in rows[0]
        if any(row[name] for row in rows) and (name != "epoch" or len(epochs) > 1)
    ]
    cells = ([row[name] for name in columns] for row in rows)
    unwrapped = {*columns} - {"key", "label", "note"}
    style = {"box": None, "pad_edge": False, "collapse_padding": True}
    return table(columns, cells, unwrapped=unwrapped, **style)


def _row(record: SeenRecord) -> dict[str, str]:
    place = record.place
    known = place.shard is not None
    return {
        "row": str(record.row),
        "index": str(record.index),
        "epoch": str(record.epoch),
        "split": "" if known else place.split or "",
        "shard and offset": f"{place.shard} @{place.offset}" if known else "",
        "key": place.key.rpartition("/")[2],  # --json has it with its folders
        "label": place.label,
        "note": record.note,
    }


if __name__ == "__main__":
    exit_with(main)
