"""The tables of a page about runs: results, processes, checkpoints, settings, versions, bad records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.pages.page import Table
from pipeline.sizes import counted, format_number
from trainer.checkpointing.contents import changes
from trainer.history.segments import Start
from trainer.pages.run_charts import SPEEDS
from trainer.pages.run_files import EVALUATION, TrainingRun, duration, utc

Value = str | int | float | bool | None
MOST_ROWS = 100
PROOF = {
    "step": "evaluated step",
    "split": "evaluated split",
    "records": "evaluated records",
    "num_records": "records of the split",
    "masked": "masked records",
    "proven": "proven exact",
}
"""Keys of eval_result.json that are not metrics."""
INTERNAL = ("crc", "expected_crc", "name", "seconds", "checkpoint_path")
GOODPUT = {"goodput": "goodput", "productive_seconds": "productive seconds"}


def results(runs: Sequence[TrainingRun]) -> Table:
    """The newest values, a column per run."""
    return _beside(runs, [dict(_results(run)) for run in runs])


def _results(run: TrainingRun) -> Iterator[tuple[str, Value]]:
    newest, recorded = run.attempts[-1] if run.attempts else None, bool(run.history.starts)
    yield "state", "not recorded" if newest is None else _state(newest.how, newest.reason)
    yield "last step", run.last_step
    for name, column in run.train.columns.items():
        if name not in SPEEDS:
            yield f"{name}, training", column.last
    for title, evaluation in run.evaluations.items():
        for name, column in evaluation.columns.items():
            yield f"{name}, {title}", column.last
    yield from _evaluated(run)
    ended = run.train_result if _is_newest(run) else {}
    for name, title in SPEEDS.items():
        last = run.train.columns[name].last if name in run.train.columns else None
        value = ended.get(name.removeprefix("speed/"), last)
        yield title, None if value is None else format_number(value)
    for name, title in GOODPUT.items():
        yield title, ended.get(name)
    yield "elapsed time, including pauses", duration(run) if run.attempts else None
    yield "restarts", len(run.attempts) - 1 if run.attempts else None
    yield "preemptions", sum(attempt.how == "preempted" for attempt in run.attempts) if recorded else None
    yield "bad records left out", len(run.bad_records) if recorded else None
    yield "devices", run.history.starts[-1].devices if recorded else None


def _is_newest(run: TrainingRun) -> bool:
    """Whether train_result.json is of the newest training: a training writes it when it has finished."""
    finished = bool(run.attempts) and run.attempts[-1].how == "finished"
    return run.train_result.get("step", run.last_step if finished else None) == run.last_step


def _evaluated(run: TrainingRun) -> Iterator[tuple[str, Value]]:
    """Entries of eval_result.json that metrics.jsonl lacks; all, named apart, if they are of another checkpoint."""
    told, known = run.eval_result, run.evaluations[EVALUATION].columns if EVALUATION in run.evaluations else {}
    newest = max((int(column.steps[-1]) for column in known.values()), default=None)
    which = ""
    if told and ("checkpoint_path" in told or newest not in (None, told.get("step"))):
        known, which = {}, f" of {told.get('checkpoint_path', 'the checkpoint of')} step {told.get('step')}"
    for name, value in told.items():
        if name not in PROOF and name not in INTERNAL and name not in known:
            yield f"{name}, {EVALUATION}{which}", value
    for name, title in PROOF.items():
        yield f"{title}, {EVALUATION}{which}" if which else title, told.get(name)


def _state(how: str, reason: str) -> str:
    if how == "no end recorded":
        return "running, or killed (no end recorded)"
    return f"{how}: {reason}" if reason and reason != how else how


def processes(run: TrainingRun) -> Table:
    """A row for each process that trained."""
    rows = []
    before = None
    for attempt in run.attempts:
        step = attempt.start.step
        after = f"{step:,}"
        if before is not None and before.reached > step:
            after += f" ({counted(before.reached - step, 'step')} lost)"
        changed = _changed(before and before.start, attempt.start)
        ended = utc(attempt.ended)
        rows.append(
            (utc(attempt.began), after, f"{attempt.reached:,}", ended, _state(attempt.how, attempt.reason), changed)
        )
        before = attempt
    note = "Times are UTC. For a process that was killed, step and time are those of its last points that still count."
    return _shortened(
        ("began", "after step", "reached step", "ended", "how", "changed"), rows, "Processes", note, "newest"
    )


def _changed(before: Start | None, now: Start) -> str:
    if before is None:
        return ""
    found = changes(before.settings, now.settings) + changes(before.versions, now.versions)
    found += changes({"devices": before.devices}, {"devices": now.devices})
    return "; ".join(found)


def checkpoints(run: TrainingRun) -> Table:
    """A row for each checkpoint that still exists."""
    names = list(dict.fromkeys(name for measured in run.measured.values() for name in measured))
    rows = []
    for step, page in run.checkpoints.items():
        measured = run.measured.get(step, {})
        spent = page.get("productive_seconds")
        saved = page.get("damage") or page["time"].replace("T", " ").replace("+00:00", "")
        rows.append((step, saved, None if spent is None else round(spent), *(measured.get(name) for name in names)))
    columns = ("step", "saved (UTC)", "productive seconds", *(f"{name}, evaluation" for name in names))
    return _shortened(columns, rows, "Checkpoints", "", "newest")


def settings(run: TrainingRun) -> Table:
    """All settings of the newest process."""
    rows = [(name, _text(value)) for name, value in _settings(run).items()]
    return Table(("setting", "value"), rows, title="All settings")


def differing(runs: Sequence[TrainingRun]) -> Table:
    """The settings, options, data, devices and versions that are not the same in all runs; a column per run."""
    table = _beside(runs, [{**_settings(run), **run.versions, **_devices(run)} for run in runs])
    note = "An empty cell: not set, or not recorded."
    return replace(table, rows=[row for row in table.rows if len({*row[1:]}) > 1], note=note)


def versions(runs: Sequence[TrainingRun]) -> Table:
    """Of the newest process of each run."""
    return _beside(runs, [run.versions for run in runs])


def bad_records(run: TrainingRun) -> Table:
    """The records that were left out."""
    rows = [(number, reason) for number, reason in sorted(run.bad_records.items())]
    return _shortened(("record", "reason"), rows, "", "Record numbers are positions in the input.", "last")


def _beside(runs: Sequence[TrainingRun], told: Sequence[Mapping[str, Value]]) -> Table:
    """A column per run, a row for each name that one of them has a value of."""
    names = dict.fromkeys(name for each in told for name, value in each.items() if value is not None)
    rows = [(name, *(_text(each.get(name)) for each in told)) for name in names]
    return Table(("", *(run.name for run in runs)), rows)


def _settings(run: TrainingRun) -> dict[str, Any]:
    """The TrainerConfig's without the work directory, the other options of the command, and the data."""
    settings = {name: value for name, value in run.settings.items() if name != "workdir"}
    if run.command is not None:
        settings = {"recipe": run.command.recipe} | settings
        options = _options(run.command.options)
        known = {f"--{name.replace('_', '-')}" for name in run.settings}
        settings |= {name: value for name, value in options.items() if name not in known}
    given = run.history.starts[-1].input if run.history.starts else None
    if given is not None:
        settings |= {
            "data": "; ".join(str(source["name"]) for source in given["sources"]),
            "fingerprint of the data": given["fingerprint"],
        }
    return settings


def _options(words: Sequence[str]) -> dict[str, str]:
    """--name -> its values, joined."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = name.replace("_", "-")  # the parser accepts both
            found[name] = value if equals else ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return {name: value or "yes" for name, value in found.items()}


def _devices(run: TrainingRun) -> Mapping[str, str]:
    return {"devices": run.history.starts[-1].devices} if run.history.starts else {}


def _text(value: Any) -> str:
    """A value to read: numbers of one column may have different units, so they are not aligned."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return format_number(value, 6)
    return value if isinstance(value, str) else json.dumps(value)


def _shortened(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str, note: str, which: str) -> Table:
    if len(rows) > MOST_ROWS:
        note = f"{note} Only the {which} {MOST_ROWS} of {len(rows):,} are shown.".strip()
    return Table(columns, rows[-MOST_ROWS:], title=title, note=note)
