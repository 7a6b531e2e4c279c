"""infeed report WORKDIR: how a run is doing, in about twenty lines: state, metrics, proof, speed.

It only reads files, so it is safe while the training is running. WORKDIR may be on a disk or in a
bucket. Curves over steps, and comparisons of runs, are TensorBoard's. Needs neither JAX nor
TensorFlow."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import json
import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.console.commands import program
from pipeline.console.console import Console, say
from pipeline.console.parser import Parser, exit_with
from pipeline.epoch import proof_of
from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import JsonFile
from pipeline.sizes import format_number, format_seconds, format_share
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file
from trainer.checkpointing.keeping import Evaluations, best_step
from trainer.checkpointing.listing import finished_steps
from trainer.checkpointing.owner import is_alive, read_record
from trainer.reports.metrics_lines import newest
from trainer.reports.segments import Segment, read_history
from trainer.reports.workdir import EVAL_RESULT, METRICS, SEGMENTS, TRAIN, TRAIN_RESULT, eval_name

EXAMPLES = ("model", "model --json")
STATES = ("preempted", "interrupted")  # how the reasons of ends begin
SPEED = "speed/"
WIDTH = 16  # of the first column


@dataclass(frozen=True)
class Proof:
    """What eval_result.json says of the newest evaluation besides its metrics."""

    step: int
    records: int
    num_records: int | None
    proven: bool
    labelled: int
    masked: int
    seconds: float
    data: str | None = None
    checkpoint_path: str | None = None
    classes: str = ""
    copies: Mapping[str, int] | None = None
    not_finite: Mapping[str, str] = field(default_factory=dict[str, str])


OTHERS = ("crc", "expected_crc", "name", "unseen", "fingerprint")
"""Keys of eval_result.json that are neither a metric nor part of the proof."""


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command. Raises InfeedError."""
    parser = Parser(
        "trainer.commands.report",
        __doc__,
        EXAMPLES,
        ("trainer.checkpoints", "trainer.commands.seen"),
    )
    parser.add_argument(
        "workdir",
        metavar="WORKDIR",
        help="the work directory of a run, local or in a bucket (gs:// or s3://)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    report = read_report(args.workdir)
    if args.json:
        print(json.dumps(_finite(report)))
        return
    console = Console()
    say(console, args.workdir)
    for name, text in _lines(report):
        say(console, f"{name:<{WIDTH}}  {text}")


def read_report(workdir: str) -> dict[str, Any]:
    """What is known of the training in a work directory, by the keys that --json prints; None where
    it is not known.

    Shares are between 0 and 1. Raises OptionError if there is no training, CheckpointError for a
    damaged file."""
    storage = open_storage(workdir)
    if not storage.remote and not Path(workdir).is_dir():
        raise OptionError(f"{workdir} is not a directory. Give the --workdir of a run.")
    history = read_history(workdir)
    saved = finished_steps(workdir)
    step, scalars = newest(join(workdir, TRAIN))
    if not (history.starts or saved or step is not None):
        raise OptionError(
            f"{workdir} has no run: neither {SEGMENTS} nor {TRAIN}/{METRICS} nor checkpoints. Give "
            "the --workdir of a run."
        )
    last = history.segments[-1] if history.segments else None
    start = last and last.start
    step = last.end.step if last and last.end else max([step or 0, *saved])
    settings = start.settings if start else {}
    hows = [_how(segment) for segment in history.segments]
    state, reason = _state(workdir, hows)
    ended = _result(workdir, TRAIN_RESULT, dict[str, float | None]) or {}
    speed = ended if ended.get("step") == step and state == "finished" else {}
    names = [name for name in storage.entries(workdir)[1] if eval_name(name) is not None]
    best_metric = str(settings.get("keep_best") or "")
    measured = Evaluations(workdir).read() if best_metric else {}
    when = scalars.pop("time", None)
    return {
        "workdir": workdir,
        "state": state,
        "reason": reason,
        "step": step,
        "max_steps": settings.get("max_steps"),
        "last_report_time": when
        and datetime.fromtimestamp(when, UTC).isoformat(timespec="seconds"),
        "recipe": history.command and history.command.recipe,
        "devices": start and start.devices,
        "training": {name: value for name, value in scalars.items() if not name.startswith(SPEED)},
        "evaluations": {name: _evaluated(workdir, name) for name in names},
        "proof": _proof(workdir),
        **{
            key: speed.get(key, scalars.get(SPEED + key))
            for key in ("examples_per_second", "steps_per_second")
        },
        "input_wait_share": speed.get("input_wait", scalars.get(f"{SPEED}input_wait")),
        "productive_seconds": speed.get("productive_seconds"),
        "wall_seconds": speed.get("wall_seconds"),
        "restarts": max(0, len(history.starts) - 1),
        "ends": dict(Counter(how for how, _ in hows[:-1])),
        "bad_records": None
        if start is None or start.input is None
        else len(history.bad_records(start.input.get("fingerprint", ""))),
        "checkpoint_steps": saved,
        "best_step": best_step(measured, saved, best_metric, settings.get("keep_best_mode")),
        "best_metric": best_metric or None,
    }


def _how(segment: Segment) -> tuple[str, str]:
    """(state, reason) of a process that trained: "killed" if it left no end."""
    if segment.end is None:
        return "killed", ""
    how, _, reason = segment.end.reason.partition(": ")
    if how in STATES:
        return how, reason
    return ("finished", "") if segment.end.reason == "finished" else ("stopped", segment.end.reason)


def _state(workdir: str, hows: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """(state, reason) of the newest process, which may still run: "running or killed" if that is
    not known."""
    if not hows:
        return "unknown", f"there is no {SEGMENTS}"
    if hows[-1][0] != "killed":
        return hows[-1]
    owner = read_record(workdir)
    if owner is None or owner.released:
        return hows[-1]
    process = f"process {owner.pid} on {owner.host}"
    alive = is_alive(workdir, owner)
    return "running or killed" if alive is None else "running" if alive else "killed", process


def _evaluated(workdir: str, name: str) -> dict[str, Any]:
    step, metrics = newest(join(workdir, name))
    metrics.pop("time", None)
    return {"step": step, "metrics": metrics}


def _proof(workdir: str) -> dict[str, Any] | None:
    """What eval_result.json has, with its metrics in one object."""
    page = _result(workdir, EVAL_RESULT, dict[str, Any])
    if page is None:
        return None
    file = _file(workdir, EVAL_RESULT)
    known = Proof.__dataclass_fields__
    proof = file.typed({name: page[name] for name in known if name in page}, Proof)
    metrics = {name: page[name] for name in page if name not in (*known, *OTHERS)}
    return asdict(proof) | {"metrics": file.typed(metrics, dict[str, float])}


def _result(workdir: str, name: str, kind: Any) -> Any:
    content = read_file(open_storage(workdir), join(workdir, name))
    return None if content is None else _file(workdir, name).read(content, kind)


def _file(workdir: str, name: str) -> JsonFile:
    remedy = "Remove it: the next evaluation or training writes it again."
    return JsonFile(join(workdir, name), CheckpointError, remedy)


def _lines(report: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(name, text) of what people ask of a run."""
    of = f" of {report['max_steps']:,}" if isinstance(report["max_steps"], int) else ""
    yield (
        "state",
        f"{report['state']} at step {report['step']:,}{of}"
        + f": {report['reason']}" * bool(report["reason"]),
    )
    if report["last_report_time"]:
        yield "last report", report["last_report_time"].replace("T", " ").replace("+00:00", " UTC")
    if report["recipe"] or report["devices"]:
        yield "trained", " on ".join(filter(None, [report["recipe"], report["devices"]]))
    yield from _metrics("training", "", report["training"])
    proof = report["proof"]
    if proof:
        where = f" of {proof['checkpoint_path']}" if proof["checkpoint_path"] else ""
        due = "" if proof["num_records"] is None else f" of {proof['num_records']:,}"
        data = f" of {proof['data']}" if proof["data"] else ""
        proven = proof_of(proof["proven"], proof["masked"], proof["copies"])
        notes = [
            f"step {proof['step']:,}{where}: {proof['records']:,}{due} records{data}, {proven}",
            *filter(None, [proof["classes"]]),
            *(f"{name} is {why}" for name, why in proof["not_finite"].items()),
        ]
        yield from _metrics("evaluation", "; ".join(notes), proof["metrics"])
    for directory, evaluated in report["evaluations"].items():
        name = eval_name(directory)
        step = evaluated["step"]
        if step is not None and (name or not proof or proof["step"] < step):
            yield from _metrics(
                f"evaluation {name}".rstrip(), f"step {step:,}", evaluated["metrics"]
            )
    if report["examples_per_second"] is not None:
        yield (
            "speed",
            f"{format_number(report['examples_per_second'])} records/s, "
            f"{format_number(report['steps_per_second'])} steps/s",
        )
        yield "input wait", f"{format_share(report['input_wait_share'])} of the time"
    if report["wall_seconds"]:
        productive = report["productive_seconds"]
        wall = report["wall_seconds"]
        yield (
            "goodput",
            (
                f"{format_share(productive / wall)}: {format_seconds(productive)} of "
                f"{format_seconds(wall)}"
            ),
        )
    ends = ", ".join(f"{count:,} {how}" for how, count in report["ends"].items())
    yield "restarts", f"{report['restarts']:,}{f' (processes before: {ends})' if ends else ''}"
    if report["bad_records"]:
        yield "bad records", f"{report['bad_records']:,} left out"
    yield "checkpoints", _checkpoints(report)
    workdir = shlex.quote(report["workdir"])
    # which reads buckets by TensorFlow, and that only gs://
    fetch = f"aws s3 sync {workdir}/train curves && " if workdir.startswith("s3://") else ""
    yield "curves", f"{fetch}tensorboard --logdir {'curves' if fetch else workdir}"
    yield "all numbers", f"{join(report['workdir'], TRAIN)}/{METRICS}"
    if report["step"]:
        yield "its records", f"{program('trainer.commands.seen')} {workdir} --step {report['step']}"


def _metrics(
    title: str, first_line: str, metrics: Mapping[str, float]
) -> Iterator[tuple[str, str]]:
    values = ", ".join(f"{name} {metric_text(name, value)}" for name, value in metrics.items())
    yield title, "; ".join(filter(None, [first_line, values])) or "no step was reported yet"


def metric_text(name: str, value: float) -> str:
    """The value of a metric as people write it: accuracies in percent."""
    return format_share(value) if "accuracy" in name else format_number(value)


def _checkpoints(report: Mapping[str, Any]) -> str:
    steps = report["checkpoint_steps"]
    if not steps:
        return "none"
    best = (
        f", the best by {report['best_metric']} of step {report['best_step']:,}"
        if report["best_step"]
        else ""
    )
    return f"{len(steps):,}, the newest of step {steps[-1]:,}{best}"


def _finite(value: Any) -> Any:
    """The same without numbers that JSON lacks."""
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    exit_with(main)
