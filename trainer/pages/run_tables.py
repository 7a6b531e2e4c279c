"""The tables of a page about runs: results, processes, checkpoints, settings, versions, bad records."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.pages.page import Table
from trainer.checkpointing.contents import changes
from trainer.events.columns import Column
from trainer.pages.run_charts import SPEEDS
from trainer.pages.run_files import EVALUATION, Run
from trainer.pages.run_times import duration, utc

__all__ = ["bad_records", "checkpoints", "differing", "processes", "results", "settings", "versions"]

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
"""Keys of eval_result.json that are no metrics."""
INTERNAL = ("crc", "expected_crc", "name", "seconds", "checkpoint_path")
GOODPUT = {
    "goodput": "goodput",
    "productive_seconds": "productive seconds",
    "wall_seconds": "seconds since it first began",
}


def results(runs: Sequence[Run]) -> Table:
    """The newest values, a column per run."""
    found = [dict(_results(run)) for run in runs]
    return _beside(runs, found)


def _results(run: Run) -> Iterator[tuple[str, Value]]:
    newest = run.attempts[-1] if run.attempts else None
    yield "state", "not recorded" if newest is None else _state(newest.how, newest.reason)
    yield "last step", run.last_step
    scalars = {name: column for name, column in run.train.columns.items() if name not in SPEEDS}
    for name, value in _last(scalars):
        yield f"{name}, training", value
    for title, evaluation in run.evaluations.items():
        for name, value in _last(evaluation.columns):
            yield f"{name}, {title}", value
    yield from _evaluated(run)
    speeds = {title: run.train.columns[name].last for name, title in SPEEDS.items() if name in run.train.columns}
    ended = {title: run.train_result.get(name.removeprefix("speed/")) for name, title in SPEEDS.items()}
    yield from (speeds | {title: value for title, value in ended.items() if value is not None}).items()
    for name, title in GOODPUT.items():
        yield title, run.train_result.get(name)
    yield "time, with pauses", duration(run) if run.attempts else None
    yield "restarts", max(0, len(run.attempts) - 1)
    yield "preemptions", sum(attempt.how == "preempted" for attempt in run.attempts)
    yield "bad records left out", len(run.bad_records)
    yield "devices", run.history.starts[-1].devices if run.history.starts else None


def _evaluated(run: Run) -> Iterator[tuple[str, Value]]:
    """Of eval_result.json, what metrics.jsonl has not."""
    told, known = run.eval_result, run.evaluations[EVALUATION].columns if EVALUATION in run.evaluations else {}
    for name, value in told.items():
        if name not in PROOF and name not in INTERNAL and name not in known:
            yield f"{name}, {EVALUATION}", value
    for name, title in PROOF.items():
        yield title, told.get(name)


def _last(columns: Mapping[str, Column]) -> Iterator[tuple[str, float]]:
    for name, column in columns.items():
        yield name, column.last


def _state(how: str, reason: str) -> str:
    return f"{how}: {reason}" if reason and reason != how else how


def processes(run: Run) -> Table:
    """A row for each process that trained."""
    rows = []
    before = None
    for attempt in run.attempts:
        after = f"{attempt.after:,}"
        if before is not None and before.reached > attempt.after:
            after += f" ({before.reached - attempt.after:,} steps lost)"
        changed = _changed(before and before.start, attempt.start)
        ended = utc(attempt.ended)
        rows.append(
            (utc(attempt.began), after, f"{attempt.reached:,}", ended, _state(attempt.how, attempt.reason), changed)
        )
        before = attempt
    note = "Times are UTC. For a process that was killed, step and time are those of the last points that it wrote."
    return _shortened(
        ("began", "after step", "reached step", "ended", "how", "changed"), rows, "Processes", note, "newest"
    )


def _changed(before: Any, now: Any) -> str:
    if before is None or now is None:
        return ""
    found = changes(before.settings, now.settings) + changes(before.versions, now.versions)
    found += changes({"devices": before.devices}, {"devices": now.devices})
    return "; ".join(found)


def checkpoints(run: Run) -> Table:
    """A row for each checkpoint that is there."""
    names = list(dict.fromkeys(name for measured in run.measured.values() for name in measured))
    rows = []
    for step, page in run.checkpoints.items():
        measured = run.measured.get(step, {})
        spent = page.get("productive_seconds")
        saved = page.get("damage") or page["time"].replace("T", " ").replace("+00:00", "")
        rows.append((step, saved, spent, *(measured.get(name) for name in names)))
    columns = ("step", "saved (UTC)", "productive seconds", *(f"{name}, evaluation" for name in names))
    return _shortened(columns, rows, "Checkpoints", "", "newest")


def settings(run: Run) -> Table:
    """All settings of the newest process."""
    return Table(("setting", "value"), [(name, _text(value)) for name, value in _settings(run).items()], "All settings")


def differing(runs: Sequence[Run]) -> Table:
    """The settings, options, data, devices and versions that are not the same in all runs; a column per run."""
    table = _beside(runs, [{**_settings(run), **run.versions, **_devices(run)} for run in runs])
    note = "An empty cell: the run did not set it."
    return replace(table, rows=[row for row in table.rows if len({*row[1:]}) > 1], note=note)


def versions(runs: Sequence[Run]) -> Table:
    """Of the newest process of each run."""
    return _beside(runs, [run.versions for run in runs])


def bad_records(run: Run) -> Table:
    """The records that were left out."""
    rows = [(number, reason) for number, reason in sorted(run.bad_records.items())]
    return _shortened(("record", "reason"), rows, "", "Numbers are those of the input.", "last")


def _beside(runs: Sequence[Run], told: Sequence[Mapping[str, Value]]) -> Table:
    """A column per run, a row for each name that one of them has a value of."""
    names = dict.fromkeys(name for each in told for name, value in each.items() if value is not None)
    rows = [(name, *(_text(each.get(name)) for each in told)) for name in names]
    return Table(("", *(run.name for run in runs)), rows)


def _settings(run: Run) -> dict[str, Any]:
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
            "data": "; ".join(source["name"] for source in given["sources"]),
            "data's fingerprint": given["fingerprint"],
        }
    return settings


def _options(words: Sequence[str]) -> dict[str, str]:
    """--name -> its values, joined."""
    found: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            found[name] = value if equals else ""
        elif name:
            found[name] = f"{found[name]} {word}".strip()
    return {name: value or "yes" for name, value in found.items()}


def _devices(run: Run) -> Mapping[str, str]:
    return {"devices": run.history.starts[-1].devices} if run.history.starts else {}


def _text(value: Any) -> str:
    """A value to read: numbers of one column may have different units, so they are not aligned."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _shortened(columns: Sequence[str], rows: Sequence[Sequence[Any]], title: str, note: str, which: str) -> Table:
    if len(rows) > MOST_ROWS:
        note = f"{note} Only the {which} {MOST_ROWS} of {len(rows):,} are shown.".strip()
    return Table(columns, rows[-MOST_ROWS:], title, note)
