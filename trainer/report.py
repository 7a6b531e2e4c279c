"""python -m trainer.report WORKDIR --html out.html: a page about a training, or about several to compare.

The page is one file: loss and metrics over steps and over time, speed and input wait, with restarts, preemptions and
checkpoints marked; results, settings, versions. With several work directories, each chart has a line per run, and the
settings that differ are listed. Without --html, a table of the newest values. WORKDIR and the page may be on a disk
or gs://. It only reads files, so it is safe while the training is still running. Needs neither JAX nor TensorFlow."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import shlex
import sys
from collections.abc import Sequence

from pipeline.errors import OptionError
from pipeline.pages.page import Block, Code, Note, Page, Section, check_page, write_page
from pipeline.sizes import counted, format_bytes
from pipeline.tools.command import Console, Parser, byte_bar, exit_with, say, table
from pipeline.tools.program import program
from trainer.history.segments import Command
from trainer.pages import run_tables
from trainer.pages.run_charts import SAME_SHAPE, SPEEDS, charts
from trainer.pages.run_files import Clock, TrainingRun, bytes_to_read, names_of, read_run
from trainer.workdir import SEGMENTS

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
        results = run_tables.results(runs)
        console.print(table(results.columns, results.rows, box=None, pad_edge=False))
        return
    given = sys.argv[1:] if argv is None else argv
    size = write_page(args.html, run_page(runs, f"{program('trainer.report')} {shlex.join(given)}"))
    say(console, f"{args.html}: {format_bytes(size)}, {counted(len(runs), 'run')}")


def _read(workdirs: Sequence[str]) -> list[TrainingRun]:
    names = names_of(workdirs)
    with byte_bar(Console(stderr=True)) as bar:
        task = bar.add_task("reading", total=sum(map(bytes_to_read, workdirs)))
        return [
            read_run(workdir, name, lambda count: bar.advance(task, count))
            for workdir, name in zip(workdirs, names, strict=True)
        ]


def run_page(runs: Sequence[TrainingRun], made_by: str = "") -> Page:
    """The page. made_by: the command that wrote it."""
    clock = Clock.of_runs(runs)
    names, several = _names(runs), len(runs) > 1
    wanted = {
        "Loss": [name for name in names if "loss" in name],
        "Speed": [name for name in SPEEDS if name not in SAME_SHAPE[: 1 if several else None]],
        "Metrics": [name for name in names if "loss" not in name],
    }
    drawn = charts(runs, wanted, clock)
    differing = run_tables.differing(runs)
    sections = [
        Section("Results", [*_notes(runs), run_tables.results(runs)]),
        Section(
            "What differs", [differing if differing.rows else Note("No recorded setting differs.")] if several else []
        ),
        *(Section(title, drawn[title]) for title in ("Loss", "Metrics", "Speed")),
        *(Section(f"Run {run.name}" if several else "Processes and checkpoints", _course(run)) for run in runs),
        Section("Bad records", [] if several or not runs[0].bad_records else [run_tables.bad_records(runs[0])]),
        Section("Settings", [table] if not several and (table := run_tables.settings(runs[0])).rows else []),
        Section("Versions", [table] if (table := run_tables.versions(runs)).rows else []),
    ]
    title = (
        f"{len(runs)} training runs: {', '.join(run.name for run in runs)}"
        if several
        else f"Training run {runs[0].name}"
    )
    return Page(title, _lead(runs), sections, made_by)


def _lead(runs: Sequence[TrainingRun]) -> str:
    if len(runs) > 1:
        return "; ".join(f"{run.name}: {run.workdir}, {counted(run.last_step, 'step')}" for run in runs) + "."
    return f"{runs[0].workdir}: {counted(runs[0].last_step, 'step')} of training."


def _names(runs: Sequence[TrainingRun]) -> list[str]:
    """Of the scalars other than the speed: those that are evaluated first."""
    evaluated = (name for run in runs for each in run.evaluations.values() for name in each.columns)
    trained = (name for run in runs for name in run.train.columns)
    return [name for name in dict.fromkeys([*evaluated, *trained]) if name not in SPEEDS]


def _notes(runs: Sequence[TrainingRun]) -> list[Block]:
    """What the work directories leave unknown."""
    found: list[Block] = []
    if without := [run.workdir for run in runs if not run.history.starts]:
        told = "an older version of infeed trained there, or the file was not copied. Settings and versions come from "
        told += "the newest checkpoint, if there is one. How processes started and ended is unknown."
        found.append(Note(f"{_have(without)} no {SEGMENTS}: {told}", warning=True))
    if without := [run.workdir for run in runs if any(each.untimed for each in (run.train, *run.evaluations.values()))]:
        told = "steps of an older version of infeed, whose metrics.jsonl has no times. They are shown over steps only."
        found.append(Note(f"{_have(without)} {told}", warning=True))
    for run in runs:
        if damaged := [step for step, page in run.checkpoints.items() if "damage" in page]:
            found.append(
                Note(f"Checkpoints of {run.workdir} are damaged: {', '.join(map(str, damaged))}.", warning=True)
            )
    return found


def _have(workdirs: Sequence[str]) -> str:
    return f"{', '.join(workdirs)} {'have' if len(workdirs) > 1 else 'has'}"


def _course(run: TrainingRun) -> list[Block]:
    found: list[Block] = []
    if run.command is not None:
        note = "An earlier process may have had other options." if len(run.history.starts) > 1 else ""
        found.append(Code(_line_of(run.command), title="Command", note=note))
    if run.attempts:
        found.append(run_tables.processes(run))
    if run.checkpoints:
        found.append(run_tables.checkpoints(run))
    return found


def _line_of(command: Command) -> str:
    words = shlex.join([command.recipe, *command.options])
    return f"cd {shlex.quote(command.directory)}\n{program('trainer')} {words}"


if __name__ == "__main__":
    exit_with(main)
