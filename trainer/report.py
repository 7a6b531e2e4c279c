"""python -m trainer.report WORKDIR --html out.html: a page about a training, or about several to compare.

The page is one file: loss, metrics, speed and input wait over steps and over time, with restarts, preemptions and
checkpoints marked; results, settings, versions. With several work directories, each chart has a line per run, and the
settings that differ are listed. Without --html, a table of the newest values. WORKDIR and the page may be on a disk
or gs://. It only reads files, so it is safe while the training is still running. Needs neither JAX nor TensorFlow."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import shlex
import sys
from collections.abc import Sequence

from rich.table import Column, Table
from rich.text import Text

from pipeline.errors import OptionError
from pipeline.pages.page import check_page, write_page
from pipeline.sizes import format_bytes
from pipeline.tools.command import Console, Parser, byte_bar, exit_with, say
from pipeline.tools.program import program
from trainer.pages.run import run_page
from trainer.pages.run_files import TrainingRun, bytes_to_read, names_of, read_run
from trainer.pages.run_tables import results

__all__ = ["EXAMPLES", "main"]

EXAMPLES = ("model", "model --html report.html")
MOST_RUNS = 16  # lines of a chart that can still be told apart


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser("trainer.report", __doc__, EXAMPLES, ("trainer", "trainer.checkpoints", "trainer.seen"))
    parser.add_argument("workdirs", metavar="WORKDIR", nargs="+", help="a work directory, local or gs://bucket/dir")
    parser.add_argument("--html", metavar="FILE", help="write a page: a file, local or gs://")
    args = parser.parse_args(argv)
    if len(args.workdirs) > MOST_RUNS:
        raise OptionError(f"{len(args.workdirs)} work directories are given. Give at most {MOST_RUNS}.")
    if args.html is not None:
        check_page(args.html)
    runs = _read(args.workdirs)
    console = Console()
    if args.html is None:
        console.print(_table(runs))
        return
    given = sys.argv[1:] if argv is None else argv
    size = write_page(args.html, run_page(runs, f"{program('trainer.report')} {shlex.join(given)}"))
    say(console, f"{args.html}: {format_bytes(size)}, {len(runs)} run{'s' * (len(runs) > 1)}")


def _read(workdirs: Sequence[str]) -> list[TrainingRun]:
    names = names_of(workdirs)
    with byte_bar(Console(stderr=True)) as bar:
        task = bar.add_task("reading", total=sum(map(bytes_to_read, workdirs)))
        return [
            read_run(workdir, name, lambda count: bar.advance(task, count))
            for workdir, name in zip(workdirs, names, strict=True)
        ]


def _table(runs: Sequence[TrainingRun]) -> Table:
    shown = results(runs)
    table = Table(*(Column(Text(name), overflow="fold") for name in shown.columns), box=None, pad_edge=False)
    for row in shown.rows:
        table.add_row(*(Text(str(value)) for value in row))
    return table


if __name__ == "__main__":
    exit_with(main)
