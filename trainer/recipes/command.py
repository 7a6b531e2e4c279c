"""The command of every recipe: its modes, and the files that it writes."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import jax

from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from trainer.config import TrainerConfig
from trainer.inputs import InputContext, InputFn
from trainer.recipes.config import RecipeConfig
from trainer.results import EvalResult
from trainer.task import Task
from trainer.trainer import Trainer

__all__ = ["Predicted", "batch_options", "run_command"]

Predicted = Callable[[dict[str, Any]], Mapping[str, Any]]
"""Maps a record's predictions to the values to write."""


def batch_options(ctx: InputContext) -> dict[str, Any]:
    """The arguments of train_dataset and eval_dataset that depend only on the context."""
    return {"global_batch": ctx.global_batch_size, "hosts": ctx.hosts, "stall_seconds": ctx.stall_seconds}


def run_command(
    config: RecipeConfig, task: Task, train_input: InputFn, eval_input: InputFn, predicted: Predicted = dict
) -> None:
    """Runs config.mode. Prints every evaluation and writes it to <workdir>/eval_result.json, the training speed
    to train_result.json, predictions to predictions.jsonl.

    predicted: maps a record's predictions, numbers and lists of numbers, to the values to write."""
    trainer = Trainer(task, config.trainer)
    if config.mode == "predict":
        _write_predictions(trainer, eval_input, predicted)
        return
    if config.mode == "evaluate-continuously":
        for result in trainer.evaluate_continuously(eval_input, timeout_seconds=config.follow_seconds):
            _tell(config.trainer, result)
        return
    speed = trainer.train(train_input).speed if config.mode == "train" else None
    _tell(config.trainer, trainer.evaluate(eval_input, check_padding=config.check_padding))
    if speed and jax.process_index() == 0 and not config.trainer.fast_dev_run:
        _publish(config.trainer.workdir, "train_result.json", asdict(speed))


def _write_predictions(trainer: Trainer, input_fn: InputFn, predicted: Predicted) -> None:
    predictions = trainer.predict(input_fn, gather=True)
    if jax.process_index() > 0:
        for _ in predictions:
            pass
        return
    workdir, count = trainer.config.workdir, 0
    path = join(workdir, "predictions.jsonl")
    with open_storage(workdir).publish(path) as sink:
        for record in predictions:
            values = {key.removeprefix("_"): value.tolist() for key, value in sorted(record.items())}
            sink.write(json.dumps(predicted(values)).encode() + b"\n")
            count += 1
    say(Console(), f"{count} predictions written to {path}")


def _tell(config: TrainerConfig, result: EvalResult) -> None:
    if jax.process_index() > 0 or config.fast_dev_run:
        return
    numbers = {key: value for key, value in asdict(result).items() if key not in ("metrics", "arrays")}
    path = _publish(config.workdir, "eval_result.json", result.metrics | numbers | {"proven": result.proven})
    shares = {name: f"{name} {value:.2%}" for name, value in result.metrics.items() if "accuracy" in name}
    others = {name: f"{name} {value:.4f}" for name, value in result.metrics.items()}
    say(
        Console(),
        f"step {result.step}: {', '.join((shares | others | shares).values())} over "
        f"{result.records} of {result.num_records} validation records, "
        f"{'proven exact' if result.proven else 'not proven'}; written to {path}",
    )


def _publish(workdir: str, name: str, report: dict[str, Any]) -> str:
    path = join(workdir, name)
    with open_storage(workdir).publish(path) as sink:
        sink.write(json.dumps(report, indent=2).encode() + b"\n")
    return path
