"""python -m trainer.seen WORKDIR --step N: lists the records that a training step saw, from the run's history.

The order of records is a pure function of the seed and the position, so nothing had to be stored per step. --losses
trains up to the step once more, from the newest checkpoint before it, and adds the loss of each record; the largest
come first, as they explain a spike. WORKDIR may be on a disk or gs://. Only --losses needs JAX.

For --losses, a recipe that is not infeed's is imported from where the history says, so it needs --run-recipe."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.progress import track
from rich.table import Table

from pipeline import logs
from pipeline.describing.shown_records import ShownRecord
from pipeline.errors import CheckpointError, OptionError
from pipeline.pages.page import Block, Cell, Note, Page, Pictures, Section, check_page, write_page
from pipeline.pages.page import Table as PageTable
from pipeline.sizes import counted, format_bytes
from pipeline.storage.schemes import is_remote
from pipeline.storage.storage import join
from pipeline.tools.command import Console, Parser, exit_with, say, table
from pipeline.tools.program import program
from trainer.events.metrics_lines import metrics_lines
from trainer.history.seen_records import SeenRecord, SeenStep, seen_batches, seen_steps
from trainer.history.segments import History, read_history
from trainer.workdir import TRAIN

if TYPE_CHECKING:
    from trainer.command.replaying import Replayed

EXAMPLES = ("model --step=20", "model --step=20 --losses")
ROWS, MOST_STEPS = 20, 10_000
LONG_STEPS = 10
MOST_ON_PAGE = 500  # records: about 3 MB of pictures


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser("trainer.seen", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints"))
    parser.add_argument("workdir", metavar="WORKDIR", help="the work directory of a training, local or gs://bucket/dir")
    parser.add_argument("--step", type=int, required=True, metavar="N", help="the training step")
    parser.add_argument("--to", type=int, metavar="M", help="the last step (default: only step N)")
    parser.add_argument("--losses", action="store_true", help="replay the steps and show the largest losses first")
    parser.add_argument("--run-recipe", action="store_true", help="let --losses run a recipe that is not infeed's")
    parser.add_argument("--rows", type=int, help=f"records of each step to show (default: {ROWS}; with --jsonl, all)")
    parser.add_argument("--jsonl", action="store_true", help="print the records as lines of JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page with the records' pictures or texts")
    parser.add_argument("--data-dir", metavar="DIR", help="where the data are now, if they were moved")
    args = parser.parse_args(argv)
    steps = range(args.step, (args.step if args.to is None else args.to) + 1)
    if not 0 < len(steps) <= MOST_STEPS:
        raise OptionError(f"--step={args.step} --to={args.to}: give 1 to {MOST_STEPS:,} steps, the first one first.")
    rows = args.rows or (None if args.jsonl else ROWS)
    if args.rows is not None and args.rows < 1:
        raise OptionError(f"--rows={args.rows}: must be at least 1.")
    if args.html is not None:
        _check_html(args.html, args.jsonl, len(steps), rows or ROWS)
    logs.show()
    workdir, html, data_dir = map(_absolute, (args.workdir, args.html, args.data_dir))  # a replay changes directory
    assert workdir is not None
    history = read_history(workdir)
    next(seen_batches(history, steps[:1], workdir))  # an error comes before a replay, which may take long
    reported = {step: values.get("loss") for step, values in metrics_lines(join(workdir, TRAIN), steps)}
    replayed = _replayed(workdir, history, steps, reported, data_dir, runs=args.run_recipe) if args.losses else {}
    losses = {step: of_step.losses for step, of_step in replayed.items()}
    found = seen_steps(history, workdir, steps, data_dir=data_dir, losses=losses, most=rows)
    found = _with_progress(found, len(steps))
    if html is not None:
        told = {step: _told(reported.get(step), replayed.get(step)) for step in steps}
        command = f"{program('trainer.seen')} {shlex.join(sys.argv[1:] if argv is None else argv)}"
        size = write_page(html, seen_page(args.workdir, found, told, bool(losses), command))
        say(Console(), f"{args.html}: {format_bytes(size)}")
    else:
        for seen in found:
            _print(seen, reported.get(seen.step), replayed.get(seen.step), as_json=args.jsonl)


def _absolute(path: str | None) -> str | None:
    return path if path is None or is_remote(path) else str(Path(path).absolute())


def _check_html(path: str, jsonl: bool, steps: int, rows: int) -> None:
    check_page(path)
    if jsonl:
        raise OptionError("--html and --jsonl are both given. Give one.")
    if steps * rows > MOST_ON_PAGE:
        raise OptionError(
            f"--html with {steps} steps of --rows={rows}: a page has at most {MOST_ON_PAGE} records. Give fewer steps "
            f"or --rows={max(1, MOST_ON_PAGE // steps)}."
        )


def _told(reported: float | None, replayed: "Replayed | None") -> str:
    if replayed:
        return f"{replayed.verdict[0].upper()}{replayed.verdict[1:]}."
    return "The step is not in metrics.jsonl." if reported is None else f"Mean loss {reported:.6g}."


def _print(seen: SeenStep, reported: float | None, replayed: "Replayed | None", *, as_json: bool) -> None:
    if as_json:
        for record in seen.records:
            print(json.dumps(record.to_json()))
        return
    console = Console()
    loss = " (not in metrics.jsonl)" if reported is None else f", mean loss {reported:.6g}"
    shown, first = len(seen.records), "the {} with the largest losses" if replayed else "the first {}"
    part = f"; {first.format(shown)}:" if shown < seen.num_rows else ""
    say(console, f"Step {seen.step:,}{loss}: {counted(seen.num_rows, 'record')}{part}")
    console.print(_table(seen.records, with_losses=replayed is not None))
    if replayed:
        say(console, f"replayed: {replayed.verdict}")


def _replayed(
    workdir: str, history: History, steps: range, reported: Mapping[int, float | None], data_dir: str | None, runs: bool
) -> "Mapping[int, Replayed]":
    """The losses of the steps; {}, with a warning, if they cannot be replayed. runs: see --run-recipe."""
    from trainer.command.replaying import replayed_losses  # loads JAX

    try:
        return dict(replayed_losses(workdir, history, steps, reported, data_dir, run_recipe=runs))
    except CheckpointError as e:
        say(Console(stderr=True), f"warning: {e}")
        return {}


def _with_progress(found: Iterator[SeenStep], steps: int) -> Iterable[SeenStep]:
    """Shows progress if it may take long, and if lines are not printed to the same terminal."""
    console = Console(stderr=True)
    hidden = steps < LONG_STEPS or not console.is_terminal or Console().is_terminal
    return track(found, "reading records", steps, console=console, disable=hidden, transient=True)


def _table(records: Sequence[SeenRecord], with_losses: bool) -> Table:
    columns = {
        "loss": ["" if record.loss is None else f"{record.loss:.5g}" for record in records] if with_losses else [],
        "row": [str(record.row) for record in records],
        "index": [str(record.index) for record in records],
        "epoch": [str(record.epoch) for record in records] if len({record.epoch for record in records}) > 1 else [],
        "split": [record.place.split or "" for record in records if record.place.shard is None],
        "shard and offset": [_where(record) for record in records],
        "key": [record.place.key.rpartition("/")[2] for record in records],  # --jsonl has it with its folders
        "label": [record.place.label for record in records],
        "note": [record.note for record in records],
    }
    columns = {name: cells for name, cells in columns.items() if len(cells) == len(records) and any(cells)}
    rows = zip(*columns.values(), strict=True)
    made = table(columns, rows, box=None, pad_edge=False, collapse_padding=True)
    for name, column in zip(columns, made.columns, strict=True):
        column.no_wrap, column.justify = name not in ("key", "label", "note"), "right" if name == "loss" else "left"
    return made


def _where(record: SeenRecord) -> str:
    place = record.place
    return "" if place.shard is None else f"{place.shard} @{place.offset}"


def seen_page(
    workdir: str, steps: Iterable[SeenStep], told: Mapping[int, str], with_losses: bool, made_by: str
) -> Page:
    """A page with a section per step. told: a sentence about each step. with_losses: whether losses were computed."""
    sections = [Section(f"Step {seen.step:,}", list(_blocks(seen, told[seen.step]))) for seen in steps]
    order = "Those with the largest losses come first." if with_losses else "They are in the order of the batch."
    return Page(
        f"What the training in {workdir} saw",
        f"The records of {counted(len(sections), 'training step')}. {order}",
        sections,
        made_by,
    )


def _blocks(seen: SeenStep, told: str) -> Iterable[Block]:
    shown = f", of which {len(seen.records):,} are shown" if len(seen.records) < seen.num_rows else ""
    yield Note(f"{told} {counted(seen.num_rows, 'record')}{shown}.")
    numbers = np.array([record.index for record in seen.records], np.int64)
    pairs = list(zip(seen.records, seen.places.shown(numbers), strict=True))
    if pictured := [(shown.pictures[0], _caption(record)) for record, shown in pairs if shown and shown.pictures]:
        yield Pictures(pictured)
    yield _page_table(pairs)


def _caption(record: SeenRecord) -> list[str]:
    place, loss = record.place, "" if record.loss is None else f"loss {record.loss:.4g}"
    return [loss or place.label, place.label if loss else "", place.key, f"row {record.row}", record.note]


def _content(shown: ShownRecord) -> list[str]:
    return [*shown.texts, *(f"{key}: {value}" for key, value in shown.values.items())]


def _page_table(pairs: list[tuple[SeenRecord, ShownRecord | None]]) -> PageTable:
    names = ["loss", "row", "index", "epoch", "label", "key", "split", "shard", "offset", "note", "content"]
    rows: list[list[Cell]] = []
    for record, shown in pairs:
        place = record.place
        content = "" if shown is None or shown.pictures else shown.problem or " · ".join(_content(shown))
        cells: list[Cell] = [record.loss, record.row, record.index, record.epoch, place.label, place.key]
        rows.append([*cells, place.split, place.shard, place.offset, record.note, content])
    return PageTable(names, rows).without_empty_columns()


if __name__ == "__main__":
    exit_with(main)
