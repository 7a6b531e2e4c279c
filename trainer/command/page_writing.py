"""The pages that a recipe's commands write: --report of an evaluation, and --mode look of what the model sees."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import numpy as np

from pipeline.describing.labels import label_text, shortened
from pipeline.describing.shown_records import MOST_TEXT, ShownRecord, TextOf, show_records
from pipeline.pages.page import Cell, Note, Page, Picture, Section, Shown, Table, write_page
from pipeline.pages.thumbnails import is_picture, thumbnail_of_array
from pipeline.shards.schema import Labels
from pipeline.sources.records import Records
from pipeline.storage.storage import join
from pipeline.tools.command import Console, say
from pipeline.tools.program import program
from trainer.checkpointing.listing import checkpoints_directory
from trainer.command.names import name_of
from trainer.history.segments import Command
from trainer.inputs import InputContext
from trainer.pages.evaluation import About, evaluation_page, joined
from trainer.recipe import DataRecipe, Recipe
from trainer.results import EvalResult, EvaluatedRecords, Look
from trainer.trainer import Trainer

MODELS = {"params": "the parameters as trained", "ema": "the averaged parameters"}

Ranges = Mapping[str, tuple[float, float]]
MOST_LINES, MOST_NUMBERS, SHARES = 8, 6, 3
SAME = "The draws are all the same, so one is shown: neither the input's ops nor the augmentation is random."
ONCE = "The input cannot draw a record again, so its first batch is shown, once."
REPEATS = "The training repeats its first batches unchanged, as overfit_batches asks, so the first one is shown, once."
SCALED = "Images that are not uint8 are scaled: the smallest value in the batch is black, the largest is white."


@dataclass(frozen=True)
class LookedAt:
    """What the page says besides the look.

    stored: its records as stored, in their order; empty if not known. repeats: whether the training repeats its first
    batches. made_by: see Page."""

    recipe: str
    stored: Sequence[ShownRecord] = ()
    labels: Labels | None = None
    text_of: TextOf | None = None
    repeats: bool = False
    made_by: str = ""


class PageInput:
    """An input_fn that remembers which data its input read, so that a page shows no records of other data.

    A recipe's input may wrap its records, or replace them: their numbers then mean something else."""

    def __init__(self, input_fn: Callable[[InputContext], Any]) -> None:
        self._input_fn, self._fingerprint = input_fn, None

    def __call__(self, ctx: InputContext) -> Any:
        """What input_fn returns."""
        source = self._input_fn(ctx)
        self._fingerprint = getattr(getattr(source, "info", source), "fingerprint", None)
        return source

    def reads(self, records: Records) -> bool:
        """Whether the numbers of the input are those of these records."""
        return records.info.fingerprint == self._fingerprint


def write_report(
    recipe: Recipe,
    command: Command | None,
    input_fn: PageInput,
    result: EvalResult,
    records: Sequence[EvaluatedRecords],
) -> None:
    """Writes the page of an evaluation; in a fast_dev_run only makes it. Raises StorageError. command: see `run`.

    input_fn, records: what the evaluation had as its input, and what it passed to on_records."""
    page = evaluation_page(result, joined(records), _evaluated(recipe, command, input_fn, result))
    if recipe.trainer.fast_dev_run:
        page.html()
        return
    write_page(str(recipe.pages.report), page)
    say(Console(), f"evaluation page written to {recipe.pages.report}")


def _evaluated(recipe: Recipe, command: Command | None, input_fn: PageInput, result: EvalResult) -> About:
    label_names, show = None, None
    facts = {"checkpoint": join(checkpoints_directory(recipe.trained_in), str(result.step))}
    facts["model"] = MODELS[recipe.trainer.evaluated_models[0]]
    if isinstance(recipe, DataRecipe):
        facts |= {"data": recipe.data_name, "split": recipe.eval_split}
        label_names = recipe.eval_records.labels
        if input_fn.reads(recipe.eval_records):
            show = partial(show_records, recipe.eval_records, text_of=recipe.record_text)
    class_names, made_by = recipe.class_names().get("class"), _command_text(command)
    return About(name_of(type(recipe)), facts, class_names, label_names, show, made_by)


def write_look(trainer: Trainer, recipe: Recipe, command: Command | None) -> None:
    """Writes the page on host 0; in a fast_dev_run only makes it. Raises StorageError. command: see `run`."""
    if jax.process_index() > 0:
        return
    pages, input_fn = recipe.pages, PageInput(recipe.train_input)
    look = trainer.look(input_fn, records=pages.look_records, draws=pages.look_draws)
    page = look_page(look, _looked_at(recipe, command, look, input_fn))
    if recipe.trainer.fast_dev_run:
        page.html()
        say(Console(), "fast_dev_run: everything works. Nothing was written.")
        return
    path = pages.report or join(recipe.trainer.workdir, "look.html")
    write_page(path, page)
    say(Console(), f"page of what the model sees written to {path}")


def _looked_at(recipe: Recipe, command: Command | None, look: Look, input_fn: PageInput) -> LookedAt:
    stored, labels, repeats = list[ShownRecord](), None, recipe.trainer.overfit_batches is not None
    if isinstance(recipe, DataRecipe):
        labels = recipe.train_records.info.labels
        if look.numbers is not None and input_fn.reads(recipe.train_records):
            stored = show_records(recipe.train_records, look.numbers, recipe.record_text)
    return LookedAt(name_of(type(recipe)), stored, labels, recipe.record_text, repeats, _command_text(command))


def _command_text(command: Command | None) -> str:
    """The command as the user gave it; "" for a recipe that a program runs."""
    return f"{program('trainer')} {shlex.join([command.recipe, *command.options])}" if command else ""


def look_page(look: Look, about: LookedAt) -> Page:
    """The page of this look."""
    same = len(look.draws) > 1 and all(_equal(look.draws[0], draw) for draw in look.draws[1:])
    draws = look.draws[:1] if same else look.draws
    count = len(next(iter(look.draws[0].values())))
    notes = [Note(SAME)] if same else []
    if look.first_batch:
        notes.append(Note(REPEATS if about.repeats else ONCE))
    ranges = dict(_ranges(look.batch))
    if ranges:
        notes.append(Note(SCALED))
    titles = ["as the model sees it"] if len(draws) == 1 else [f"epoch {epoch}" for epoch in range(len(draws))]
    columns = ["record", *["as stored"] * bool(about.stored), *titles]
    rows = [_row(row, look, draws, ranges, about) for row in range(count)]
    sections = [
        Section("What the model sees", [*notes, Table(columns, rows)]),
        Section("Features of a batch", [_features(look.batch)]),
    ]
    lead = f"{count:,} training records, after the input's ops and the augmentation on the device."
    return Page(f"{about.recipe}: what the model sees", lead, sections, about.made_by)


def _row(
    row: int, look: Look, draws: Sequence[Mapping[str, np.ndarray]], ranges: Ranges, about: LookedAt
) -> list[Cell]:
    number = row if look.numbers is None else int(look.numbers[row])
    cells: list[Cell] = []
    if about.stored:
        record = about.stored[row]
        cells.append(Shown((), [f"{number:,}", record.name or record.where]))
        cells.append(Shown(record.pictures, [record.label, *record.texts, record.problem]))
    else:
        cells.append(f"{number:,}")
    alt = f"record {number:,} as the model sees it"
    for draw in draws:
        features = {name: values[row] for name, values in draw.items() if not name.startswith("_")}
        cells.append(Shown(list(_pictures(features, ranges, alt)), [*_lines(features, about)][:MOST_LINES]))
    return cells


def _pictures(features: Mapping[str, np.ndarray], ranges: Ranges, alt: str) -> Iterator[Picture]:
    for name, values in features.items():
        if _is_image(values):
            pixels = _scaled(values, *ranges[name]) if name in ranges else values
            yield thumbnail_of_array(pixels, f"{alt}: {name}")


def _scaled(values: np.ndarray, low: float, high: float) -> np.ndarray:
    scaled = (values.astype(np.float32) - low) * (255 / ((high - low) or 1))
    return np.nan_to_num(scaled.clip(0, 255)).round().astype(np.uint8)


def _lines(features: Mapping[str, np.ndarray], about: LookedAt) -> Iterator[str]:
    """The features that are not pictures, in words."""
    text = about.text_of(features) if about.text_of else None
    if text is not None:
        yield shortened(text, MOST_TEXT).replace("\n", " ↵ ")
    for name, values in features.items():
        if _is_image(values) or (text is not None and values.ndim):
            continue
        labels = about.labels
        if labels and name == labels.key and not values.ndim and values.dtype.kind in "iu":
            yield f"{name}: {label_text(labels, int(values))}"
        else:
            yield f"{name}: {_soft_labels(values, labels) or _numbers(values)}"


def _soft_labels(values: np.ndarray, labels: Labels | None) -> str:
    """The largest shares of classes; "" if these numbers are none."""
    shares = values.astype(np.float64)
    if values.dtype.kind != "f" or values.ndim != 1 or shares.min(initial=0) < 0 or abs(shares.sum() - 1) > 1e-3:
        return ""
    known = labels.names if labels and labels.count == len(values) else ()
    largest = np.argsort(-shares, kind="stable")[:SHARES]
    return ", ".join(f"{known[at] if known else at} {shares[at]:.1%}" for at in largest.tolist() if shares[at] > 0)


def _numbers(values: np.ndarray) -> str:
    flat = values.ravel()
    shown = ", ".join(f"{value:.4g}" for value in flat[:MOST_NUMBERS].tolist())
    return shown if len(flat) <= MOST_NUMBERS else f"{shown}, ... ({len(flat):,} numbers)"


def _features(batch: Mapping[str, np.ndarray]) -> Table:
    rows: list[list[Cell]] = []
    for name, values in batch.items():
        if name.startswith("_"):
            continue
        numbers = values.astype(np.float64)
        low, mean, high = (numbers.min(), numbers.mean(), numbers.max()) if values.size else (np.nan,) * 3
        rows.append([name, str(values.dtype), str(list(values.shape[1:])), float(low), float(mean), float(high)])
    count = len(next(iter(batch.values())))
    note = f"Over {count:,} records, a batch of this host. Shapes are those of one record."
    return Table(("feature", "dtype", "shape", "min", "mean", "max"), rows, note=note)


def _ranges(batch: Mapping[str, np.ndarray]) -> Iterator[tuple[str, tuple[float, float]]]:
    """The smallest and the largest number of images that are not uint8."""
    for name, values in batch.items():
        if values.ndim > 1 and len(values) and values.dtype != np.uint8 and _is_image(values[0]):
            numbers = values.astype(np.float32)
            finite = numbers[np.isfinite(numbers)]
            yield name, (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)


def _is_image(values: np.ndarray) -> bool:
    return values.dtype.kind in "uifV" and is_picture(values)


def _equal(one: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray]) -> bool:
    names = [name for name in one if not name.startswith("_")]
    return all(one[name].tobytes() == other[name].tobytes() for name in names)
