"""A recipe: what `python -m trainer` needs to train, evaluate and predict, with its fields as
flags.

Write a frozen, kw_only dataclass that subclasses Recipe, or DataRecipe for data that open_dataset
reads; see docs/recipes.md. This module imports neither JAX nor TensorFlow: a recipe that imports
them inside its methods shows --help and reports wrong flags immediately."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import OptionError
from trainer.checkpointing.warm_start import WarmStart
from trainer.config import Export, TrainerConfig, settings
from trainer.optimizers.config import OptimizerConfig, Run

if TYPE_CHECKING:
    from pipeline.description import Description
    from pipeline.shards.example import Value
    from pipeline.shards.schema import Labels, Schema
    from pipeline.sources.dataset import Dataset
    from pipeline.sources.open_dataset import Data
    from pipeline.sources.records import Records
    from trainer.callbacks import Callback
    from trainer.inputs import Input
    from trainer.task import Task
    from trainer.trainer import Trainer

__all__ = [
    "DataRecipe",
    "Export",
    "OptimizerConfig",
    "Recipe",
    "TrainerConfig",
    "WarmStart",
    "settings",
]

TINY_STEPS, TINY_BATCH = 20, 32
NEEDS_DATA = "the directory with the shards as --data-dir, or try the recipe without data: --tiny."


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A Task, its inputs and its flags. A subclass adds fields, which become flags with their
    docstrings as help.

    The fields of warm_start, export and trainer are flags, too: see WarmStart, Export and
    TrainerConfig. For other defaults of the trainer's flags, a subclass repeats its last field:
    trainer: TrainerConfig = settings(max_steps=600)."""

    common_fields: ClassVar[Sequence[str]] = ()
    """Those of a subclass's fields that --help shows. Default: all; --help-all shows them
    anyway."""

    found_fields: ClassVar[Sequence[str]] = ()
    """Fields that `found` may set. A run that resumes keeps their values, unless options give
    others."""

    mode: Literal["train", "evaluate", "evaluate-continuously", "predict", "export", "sample"] = (
        "train"
    )
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint.
    evaluate-continuously: evaluate new checkpoints as another process saves them. predict: write
    <workdir>/predictions.jsonl, a line per record of the validation split. export: publish a
    SavedModel, verified with records of that split. sample: print texts that a language model
    generates."""
    follow_seconds: float = 3600.0
    """evaluate-continuously ends when no new checkpoint has appeared for this long, or after that
    of max_steps without max_epochs."""
    show_state: bool = False
    """Print the arrays of the run's state, with dtype and shape, how each is split over the
    devices, how the optimizer treats each parameter, and the bytes per device; then end."""
    checkpoint_path: str | None = None
    """For evaluate, predict, export and sample: another work directory, or a checkpoint in it,
    whose model to use. Results are still written to --workdir."""
    eval_every_steps: int | None = None
    """Evaluate every so many steps of the training, too, not only at its end."""
    patience: int | None = None
    """With --eval-every-steps: end the training once this many evaluations in a row have brought
    no better value of --keep-best, which is then the loss by default. What follows uses the last
    model; the log names the best checkpoint, for --checkpoint-path."""
    check_padding: bool = False
    """Evaluate with three kinds of padding after the last record; an error unless the metrics are
    bit-identical."""
    report: str | None = None
    """Write a page about the evaluation to this file, such as report.html, or in a bucket. It shows
    metrics and their proof, mistakes by class, and the worst records. With --mode train, the page
    is about the evaluation at the end."""
    warm_start: WarmStart = field(default_factory=WarmStart)
    export: Export = field(default_factory=Export)
    trainer: TrainerConfig = field(default_factory=settings)

    def __post_init__(self) -> None:
        check_number("follow_seconds", self.follow_seconds, above=0)
        check_positive_int("eval_every_steps", self.eval_every_steps)
        check_positive_int("patience", self.patience)
        if self.patience and not self.eval_every_steps:
            raise OptionError(
                f"patience={self.patience} counts evaluations during the training. Give "
                "eval_every_steps, too."
            )
        if self.patience and not self.trainer.keep_best:
            object.__setattr__(self, "trainer", replace(self.trainer, keep_best="loss"))
        if not isinstance(self.trainer.workdir, str):
            raise OptionError(
                "workdir is not given. Give trainer=settings(workdir=...), or --workdir to the "
                "command."
            )

    @property
    def trained_in(self) -> str:
        """The work directory of the model: the trainer's, unless checkpoint_path names another."""
        from trainer.checkpointing.listing import find_elsewhere

        if not self.checkpoint_path:
            return self.trainer.workdir
        return find_elsewhere(self.checkpoint_path).workdir

    @property
    def begins(self) -> bool:
        """Whether this trains a new model, which starts from init_from if that is given."""
        from trainer.checkpointing.listing import finished_steps

        config = self.trainer
        return self.mode == "train" and not (
            finished_steps(config.workdir) and not config.fast_dev_run
        )

    def found(self) -> Mapping[str, Any]:
        """Values for found_fields in a run that begins, from files with the weights of init_from.
        The command sets those that no option gives. Default: none."""
        return {}

    @property
    def run(self) -> Run | None:
        """The length and batch size of the training, for make_optimizer of trainer.optimizers. None
        in other modes."""
        if self.mode != "train":
            return None
        config = self.trainer
        steps = config.last_step(config.max_epochs and self.num_records) or config.fast_dev_run
        return Run(steps, config.global_batch_size) if steps else None

    @property
    def num_records(self) -> int | None:
        """The records of an epoch of the training. Default: not known."""
        return None

    @abstractmethod
    def task(self) -> "Task":
        """The model, its loss and its optimizer."""

    @abstractmethod
    def train_input(self, *ctx: Any, **_: Any) -> "Input | Iterable[Mapping[str, Any]]":
        """What to train on: train_input(self) returns a train_dataset without a batch size;
        train_input(self, ctx) returns what it makes of an InputContext, such as an iterable of
        dicts of NumPy arrays."""

    @abstractmethod
    def eval_input(self, *ctx: Any, **_: Any) -> "Input | Iterable[Mapping[str, Any]]":
        """The batches of one epoch to evaluate and predict, of the same kinds."""

    def callbacks(self) -> "Sequence[Callback]":
        """Your code at the end of dispatches, saves and evaluations. Default: none."""
        return ()

    def prediction(self, values: dict[str, Any]) -> Mapping[str, Any]:
        """What to write to predictions.jsonl for a record. values: its predictions, numbers and
        lists of numbers."""
        return values

    def samples(self, trainer: "Trainer") -> "Iterable[str]":
        """The texts that mode="sample" prints, from the model of the trainer's newest checkpoint,
        or of checkpoint_path. Default: none, and the mode is refused."""
        return ()

    def class_names(self) -> "Mapping[str, Labels]":
        """The class names of predictions, for exports and pages: those of "class" become the
        prediction "class_name". Default: none."""
        return {}

    def record_text(self, features: Mapping[str, Any]) -> str | None:
        """The text that pages show for the features of a record, such as its tokens. Default:
        none."""
        return None

    def check(self) -> None:
        """Checks the work directory, before JAX is imported. A subclass may check more, after
        super().check().

        Writes nothing: the command tries whether the work directory is writable after these checks.
        Raises InfeedError for a work directory that has no checkpoint to evaluate, for an init_from
        that is not a checkpoint, for a checkpoint_path without one or with another mode, for a
        restore_step with a mode that does not train, and for an export_path where exports cannot
        be."""
        from pipeline.pages.page import check_page
        from trainer.checkpointing.listing import check_checkpoint, checkpoints_directory
        from trainer.checkpointing.warm_start_finding import find_checkpoint
        from trainer.serving.publishing import check_place

        workdir = self.trainer.workdir
        trains = self.mode == "train"
        if self.report is not None:
            if self.mode not in ("train", "evaluate"):
                raise OptionError(
                    f"report={self.report!r} with mode={self.mode}: only train and evaluate write "
                    "a page. Leave it out."
                )
            check_page(self.report)
        if self.export.export_path is not None and self.mode in ("train", "export"):
            check_place(self.export.export_path, workdir)
        if self.mode == "sample" and type(self).samples is Recipe.samples:
            raise OptionError(
                "mode=sample: this recipe generates nothing. The recipes char_lm and byte_lm do, "
                "and so does one of your own with a method samples(self, trainer)."
            )
        if self.begins and self.warm_start.init_from:
            find_checkpoint(self.warm_start.init_from)
        if self.checkpoint_path is not None:
            if self.mode not in ("evaluate", "predict", "export", "sample"):
                raise OptionError(
                    f"checkpoint_path={self.checkpoint_path!r} with mode={self.mode}: only "
                    "evaluate, predict, export and sample use it. To begin a run with its "
                    "parameters, give --init-from."
                )
            _ = self.trained_in
            return
        # evaluate-continuously waits for the first checkpoint, and takes the flags of the training.
        if not self.trainer.fast_dev_run and self.mode != "evaluate-continuously":
            step = self.trainer.restore_step
            if step is not None and not trains:
                raise OptionError(
                    f"restore_step={step} with mode={self.mode}: only a training resumes from it. "
                    f"Leave it out for the newest checkpoint; for this one, give "
                    f"--checkpoint-path={checkpoints_directory(workdir)}/{step}."
                )
            check_checkpoint(workdir, step, required=not trains)


@dataclass(frozen=True, kw_only=True)
class DataRecipe(Recipe):
    """A recipe on a dataset: `train_records` and `eval_records` are open, checked, and ready for
    pipeline.datasets."""

    data_dir: str | tuple[str, ...] | None = None
    """Directory with the shards and their manifest.json, or several, whose records are read as one
    dataset. Required, unless --tiny is given."""
    tiny: bool = False
    """Try the recipe without data: at most 20 steps of at most 32 records, a few of which are
    generated in memory in place of both splits."""
    train_split: str = "train"
    """What to train on; may be a part: train[:90%]."""
    eval_split: str = "validation"
    """What to evaluate and predict: validation, test, train[90%:]."""
    trust_features: tuple[str, ...] = ()
    """For a dataset of TFDS with features of your own: the modules that have their classes. TFDS
    imports them."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tiny and self.data_dir is not None:
            raise OptionError(
                f"data_dir={self.data_dir!r} with tiny: tiny generates its records. Leave one out."
            )
        if self.tiny:
            config = replace(
                self.trainer,
                max_epochs=None,
                max_steps=min(self.trainer.max_steps or TINY_STEPS, TINY_STEPS),
                global_batch_size=min(self.trainer.global_batch_size, TINY_BATCH),
            )
            object.__setattr__(self, "trainer", config)
        elif self.data_dir is None:
            raise OptionError(f"data_dir is not given. Give {NEEDS_DATA}")

    @property
    def data_name(self) -> str:
        """What messages call the data: data_dir, or --tiny."""
        return " + ".join(self._directories) or "--tiny"

    @property
    def _directories(self) -> tuple[str, ...]:
        return (self.data_dir,) if isinstance(self.data_dir, str) else self.data_dir or ()

    @cached_property
    def train_records(self) -> "Dataset":
        """The records of train_split. Raises like open_dataset."""
        return self._opened(self.train_split)

    @cached_property
    def eval_records(self) -> "Dataset":
        """The records of eval_split; its labels are the model's, as in batches. Raises like
        open_dataset."""
        model = self.description
        return self._opened(self.eval_split).labelled_as(model and model.labels)

    @cached_property
    def description(self) -> "Description | None":
        """What gives the numbers of the model their meaning: features, class names, statistics, the
        tokenizer.

        That of the run in the work directory or at checkpoint_path; of a run that begins, that of
        train_records, or with a warm start what as_begun of trainer.checkpointing.kept_data says.
        None for data whose features are not known. The inputs get these numbers, whatever data they
        read."""
        from trainer.checkpointing.kept_data import as_begun, kept
        from trainer.checkpointing.listing import finished_steps

        trains = self.mode == "train"
        tries = self.trainer.fast_dev_run
        begun = not tries and finished_steps(self.trained_in)
        if begun or not (trains or tries):
            description = kept(self.trained_in, self.trainer.restore_step)
            if begun or description:
                return description
        if not trains and self.mode != "evaluate-continuously":
            return self._opened(self.eval_split).info.description
        own = self.train_records.info.description
        return own if tries else as_begun(self.warm_start, self.target_key)(own)

    @cached_property
    def schema(self) -> "Schema":
        """The features of the description; without any if they are not known."""
        from pipeline.shards.schema import Schema

        return self.description.schema if self.description else Schema("", {})

    @property
    def target_key(self) -> str | None:
        """The feature that the task predicts. Default: that of the class names."""
        labels = self.train_records.info.labels
        return labels and labels.key

    @property
    def num_records(self) -> int:
        """The records of train_split."""
        return self.train_records.num_records

    def on(self, records: "Records") -> Self:
        """The same recipe with these records in place of both splits."""
        from pipeline.sources.open_dataset import open_dataset

        other = replace(self)
        vars(other).update(train_records=open_dataset(records), eval_records=open_dataset(records))
        return other

    def file_record(self, data: bytes, *, upright: bool = False) -> "Mapping[str, Value]":
        """The features, for `infeed predict`, of a record as a conversion makes it from a file with
        these bytes.

        Features that are left out are blank. upright: turn an image according to EXIF. Raises
        Reject for a file that cannot be read. Default: OptionError, as only the recipe knows what
        its inputs read."""
        raise OptionError(
            f"the recipe {type(self).__qualname__} reads no files: it has no method "
            "file_record(self, data, *, upright). Give tables (csv, tsv, jsonl, Parquet, Arrow), "
            "whose columns have the names of its features."
        )

    def row_record(self, cells: Mapping[str, Any]) -> "Mapping[str, Value]":
        """The same, from the cells of a table's row by column: texts in csv. Default: each column
        that has the name of a feature is its value, or the list of its values. Raises Reject for a
        row without any, or whose value is of another kind."""
        from trainer.checkpointing.kept_data import row_values

        return row_values(self.schema, cells)

    def row_schema(self, schema: "Schema") -> "Schema":
        """The schema of the records that row_record makes, from the dataset's. Default: the
        same."""
        return schema

    @cached_property
    def row_classes(self) -> Mapping[str, Mapping[str, int]]:
        """Column -> class -> number, as row_record reads them. `infeed predict` counts other
        classes. Default: none."""
        return {}

    def tiny_records(self, split: str) -> "Data":
        """The records that --tiny uses in place of this split: what open_dataset accepts, such as a
        dict of arrays.

        The same for equal splits, on every host and in every run. trainer.recipes.tiny makes
        labelled images. Default: OptionError, because only the recipe knows what its inputs
        read."""
        kind = type(self)
        raise OptionError(
            f"{kind.__module__}:{kind.__qualname__} has no records to use in place of split "
            f"{split!r} with --tiny. Give --data-dir, or add a method tiny_records(self, split) to "
            "the recipe, which returns them."
        )

    def check(self) -> None:
        """Checks like Recipe.check; opens the records, too. Raises InfeedError for a data_dir,
        split or shard that is missing or does not have the size in the manifest, and where
        max_steps is missing."""
        ends = (self.trainer.max_steps, self.trainer.max_epochs, self.trainer.fast_dev_run)
        if self.mode == "train" and not any(ends):
            raise OptionError("the run needs an end. Give --max-steps or --max-epochs.")
        super().check()
        if self.mode == "train":
            workdir = self.trainer.workdir
            if workdir.rstrip("/") in (each.rstrip("/") for each in self._directories):
                raise OptionError(
                    f"workdir={workdir} is a data_dir. Give another directory as --workdir."
                )
            _ = self.train_records
        _ = self.eval_records

    def _opened(self, split: str) -> "Dataset":
        from pipeline.sources.open_dataset import open_dataset  # loads NumPy

        if self.data_dir is None:
            return open_dataset(self.tiny_records(split))
        return open_dataset(self.data_dir, split, trust_features=self.trust_features)
