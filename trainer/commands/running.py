"""The modes of a recipe, the files that they write, the page of --report, and what --show-state
prints."""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax

from pipeline.console.commands import program
from pipeline.console.console import Console, say, table
from pipeline.pages.page import write_page
from pipeline.pages.shown_records import show_records
from pipeline.sizes import format_bytes
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.callbacks import Callback, EarlyStopping
from trainer.checkpointing.listing import checkpoints_directory
from trainer.commands import name_of
from trainer.commands.evaluation_page import evaluation_page, joined
from trainer.optimizers.build import groups_of
from trainer.optimizers.config import OptimizerConfig
from trainer.recipe import DataRecipe, Recipe
from trainer.reports.progress import RecordsLine
from trainer.reports.segments import Invocation
from trainer.reports.workdir import EVAL_RESULT, PREDICTIONS
from trainer.results import EvalResult, EvaluatedRecords
from trainer.trainer import Trainer

MODELS = {"params": "the parameters as trained", "ema": "the averaged parameters"}
PARAMS = "variables/params/"
COLUMNS = ("array", "dtype", "shape", "split", "learning rate", "weight decay")
WIDTH = 200  # names of arrays are long, and a line that wraps cannot be searched


def write_report(
    recipe: Recipe,
    command: Invocation | None,
    result: EvalResult,
    records: Sequence[EvaluatedRecords],
) -> None:
    """Writes the page of an evaluation; in a fast_dev_run only makes it. Raises StorageError.
    command: see `run`.

    records: what the evaluation passed to on_records."""
    label_names = show = None
    facts = {
        "checkpoint": join(checkpoints_directory(recipe.trained_in), str(result.step)),
        "model": MODELS[recipe.trainer.evaluated_model],
    }
    if isinstance(recipe, DataRecipe):
        facts |= {"data": recipe.data_name, "split": recipe.eval_split}
        label_names = recipe.eval_records.labels
        # A recipe's input may wrap its records, or replace them: their numbers then mean something
        # else.
        if result.fingerprint == recipe.eval_records.info.fingerprint:
            show = partial(show_records, recipe.eval_records, text_of=recipe.record_text)
    made_by = ""
    if command:
        made_by = f"{program('trainer')} {shlex.join([command.recipe, *command.options])}"
    page = evaluation_page(
        result,
        joined(records),
        name_of(type(recipe)),
        facts,
        class_names=recipe.class_names().get("class"),
        label_names=label_names,
        show=show,
        made_by=made_by,
    )
    if not recipe.trainer.fast_dev_run:
        write_page(str(recipe.report), page)
        say(Console(), f"evaluation page written to {recipe.report}")


def run(recipe: Recipe, command: Invocation | None = None) -> None:
    """Runs recipe.mode. Prints every evaluation, and writes predictions to
    <workdir>/predictions.jsonl.

    command: what started the process, for the history of the work directory and for pages."""
    task = recipe.task()
    trainer = Trainer(
        task,
        recipe.trainer,
        callbacks=_callbacks(recipe),
        warm_start=recipe.warm_start,
        command=command,
    )
    if recipe.show_state:
        _show_state(trainer, recipe)
    elif recipe.mode == "sample":
        # A line of dashes separates texts.
        for number, text in enumerate(recipe.samples(trainer)):
            for line in (*("---",) * (number > 0), *text.split("\n")):
                _say(line)  # which escapes control characters: a model may generate some
    elif recipe.trainer.fast_dev_run:
        _try(trainer, recipe, command, predicts=task.predict_fn is not None)
    elif recipe.mode == "predict":
        _write_predictions(trainer, recipe)
    elif recipe.mode == "evaluate-continuously":
        for result in trainer.evaluate_continuously(
            recipe.eval_input, timeout_seconds=recipe.follow_seconds
        ):
            _say_result(recipe, result)
    elif recipe.mode == "export":
        _export(trainer, recipe)
    else:
        if not (recipe.mode == "train" and _trained_and_evaluated(trainer, recipe)):
            _evaluate(trainer, recipe, command)
        if recipe.mode == "train" and recipe.export.export_path:
            _export(trainer, recipe)


def _callbacks(recipe: Recipe) -> Sequence[Callback]:
    if recipe.patience is None or recipe.mode != "train":
        return recipe.callbacks()
    metric, better = recipe.trainer.keep_best or "loss", recipe.trainer.keep_best_mode
    return [*recipe.callbacks(), EarlyStopping(metric, recipe.patience, better=better)]


def _trained_and_evaluated(trainer: Trainer, recipe: Recipe) -> bool:
    """Trains. Whether the last state was evaluated, too, as far as that was asked for."""
    if recipe.eval_every_steps is None:
        trainer.train(recipe.train_input)
        return False
    evaluations = trainer.train_and_evaluate(
        recipe.train_input, recipe.eval_input, eval_every_steps=recipe.eval_every_steps
    ).evaluations
    if not evaluations or recipe.report or recipe.check_padding:
        return False
    _say_result(recipe, evaluations[-1])
    return True


def _try(trainer: Trainer, recipe: Recipe, command: Invocation | None, predicts: bool) -> None:
    """Every mode for a moment, with results that nobody reads."""
    if recipe.mode == "train":
        trainer.train(recipe.train_input)
    _evaluate(trainer, recipe, command)
    predicts = predicts or recipe.mode == "predict"  # which states the remedy
    for line in _lines(trainer, recipe) if predicts else ():
        json.dumps(line)
    too = ", predictions too" if predicts else ""
    _say(f"fast_dev_run: everything works{too}. Nothing was written.")


def _evaluate(trainer: Trainer, recipe: Recipe, command: Invocation | None) -> None:
    records = list[EvaluatedRecords]()  # about 20 bytes per record
    result = trainer.evaluate(
        recipe.eval_input,
        checkpoint_path=recipe.checkpoint_path,
        check_padding=recipe.check_padding,
        on_records=records.append if recipe.report else None,
    )
    if not recipe.trainer.fast_dev_run:
        _say_result(recipe, result)
    if recipe.report and jax.process_index() == 0:
        write_report(recipe, command, result, records)


def _write_predictions(trainer: Trainer, recipe: Recipe) -> None:
    if jax.process_index() > 0:
        for _ in _lines(trainer, recipe):
            pass
        return
    path = join(trainer.config.workdir, PREDICTIONS)
    count = 0
    with (
        open_storage(path).publish(path) as sink,
        RecordsLine("predicted", total=None) as progress,
    ):
        for line in _lines(trainer, recipe):
            sink.write(json.dumps(line).encode() + b"\n")
            progress.add(1)
            count += 1
    say(Console(), f"{count} predictions written to {path}")


def _export(trainer: Trainer, recipe: Recipe) -> None:
    options = recipe.export
    result = trainer.export(
        options.export_path or join(recipe.trainer.workdir, "export"),
        recipe.eval_input,
        checkpoint_path=recipe.checkpoint_path,
        labels=recipe.class_names(),
        tolerance=options.export_tolerance,
    )
    _say(
        f"step {result.step}: exported to {result.path}; a process without JAX predicts the same, "
        f"with a largest difference of {result.difference:.2g}"
    )


def _lines(trainer: Trainer, recipe: Recipe) -> Iterator[Mapping[str, Any]]:
    for record in trainer.predict(
        recipe.eval_input, checkpoint_path=recipe.checkpoint_path, gather=True
    ):
        yield recipe.prediction(plain_values(record))


def plain_values(record: Mapping[str, Any]) -> dict[str, Any]:
    """The predictions of a record as numbers and lists of numbers, by name."""
    return {key.removeprefix("_"): value.tolist() for key, value in sorted(record.items())}


def _say_result(recipe: Recipe, result: EvalResult) -> None:
    _say(f"{result}; written to {join(recipe.trainer.workdir, EVAL_RESULT)}")


def _say(line: str) -> None:
    """Prints it on host 0."""
    if jax.process_index() == 0:
        say(Console(), line)


def _show_state(trainer: Trainer, recipe: Recipe) -> None:
    """Prints a table on host 0. Opens the training's input and computes nothing."""
    arrays = trainer.state_arrays(recipe.train_input)
    params = {
        name.removeprefix(PARAMS): leaf for name, leaf in arrays.items() if name.startswith(PARAMS)
    }
    treated = _treated(recipe, params)
    rows = []
    for name, leaf in arrays.items():
        spec = getattr(leaf.sharding, "spec", ())
        split = ", ".join(map(str, spec)) if any(spec) else ""
        rows.append((name, leaf.dtype, list(leaf.shape), split, *treated.get(name, ("", ""))))
    if jax.process_index() > 0:
        return
    console = Console(width=WIDTH)
    console.print(table(COLUMNS, rows, box=None, pad_edge=False))
    count = sum(math.prod(leaf.shape) for leaf in params.values())
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in arrays.values())
    parts = [
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in arrays.values()
    ]
    total = f"the state takes {format_bytes(size)}, {format_bytes(sum(parts))} per device"
    say(console, f"{count:,} parameters in {len(params)} arrays; {total}")


def _treated(recipe: Recipe, params: dict[str, jax.ShapeDtypeStruct]) -> dict[str, tuple[str, str]]:
    """Learning rate and weight decay by the name of the array, if the recipe has its optimizer from
    flags."""
    config = getattr(recipe, "optimizer", None)
    if not isinstance(config, OptimizerConfig):
        return {}
    groups = groups_of(config, {name: leaf.shape for name, leaf in params.items()})
    return {
        f"{PARAMS}{name}": (
            f"x {group.rate:g}" if group.rate else "frozen",
            f"{config.weight_decay:g}" if group.decays else "",
        )
        for name, group in groups.items()
    }
