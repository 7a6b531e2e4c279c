"""The page about training runs: what happened in one work directory, or several of them compared."""

import shlex
from collections.abc import Sequence

from pipeline.pages.page import Block, Code, Note, Page, Section
from pipeline.tools.program import program
from trainer.history.segments import Command
from trainer.pages import run_tables
from trainer.pages.run_charts import SPEEDS, charts
from trainer.pages.run_files import TrainingRun
from trainer.pages.run_times import Clock
from trainer.workdir import SEGMENTS

__all__ = ["run_page"]


def run_page(runs: Sequence[TrainingRun], made_by: str = "") -> Page:
    """The page. made_by: the command that wrote it."""
    clock = Clock.of_runs(runs)
    names = _names(runs)
    wanted = {
        "Loss": [name for name in names if "loss" in name],
        "Speed": [name for name in SPEEDS if name != "speed/tflops_per_second"],  # that has the shape of the others
        "Metrics": [name for name in names if "loss" not in name],
    }
    drawn = charts(runs, wanted, clock)
    several = len(runs) > 1
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
        return "; ".join(f"{run.name}: {run.workdir}, {run.last_step:,} steps" for run in runs) + "."
    return f"{runs[0].workdir}: {runs[0].last_step:,} steps of training."


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
        found.append(Code(_line_of(run.command), "Command", note))
    if run.attempts:
        found.append(run_tables.processes(run))
    if run.checkpoints:
        found.append(run_tables.checkpoints(run))
    return found


def _line_of(command: Command) -> str:
    words = shlex.join([command.recipe, *command.options])
    return f"cd {shlex.quote(command.directory)}\n{program('trainer')} {words}"
