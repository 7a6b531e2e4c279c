"""The flags of every recipe's command: parsing, and the checks that need neither JAX nor TensorFlow.

Imports little at the top: --help appears immediately, and a wrong flag is reported within a second."""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import tyro

from pipeline.errors import InfeedError, OptionError
from trainer.config import TrainerConfig
from trainer.recipes.flag_help import end_of_help, join_lines

if TYPE_CHECKING:
    from pipeline.sources.records import Records

__all__ = ["SMALL_BATCHES", "RecipeConfig", "parsed"]

SMALL_BATCHES = TrainerConfig(workdir=tyro.MISSING, global_batch_size=64, eval_batch_size=128, iterations_per_loop=20)
"""The defaults of recipes for small images."""


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """Each recipe's Config adds its own flags, and the defaults of `trainer`."""

    data_dir: str
    """Directory with the shards and their manifest.json."""
    train_split: str = "train"
    """What to train on; may be a part: train[:90%]."""
    eval_split: str = "validation"
    """What to evaluate and predict: validation, test, train[90%:]."""
    mode: Literal["train", "evaluate", "evaluate-continuously", "predict"] = "train"
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint. evaluate-continuously: evaluate new
    checkpoints as another process saves them. predict: write <workdir>/predictions.jsonl, a line per record of the
    validation split."""
    follow_seconds: float = 3600.0
    """evaluate-continuously ends when no new checkpoint has appeared for this long, or after that of max_steps."""
    check_padding: bool = False
    """Evaluate with three kinds of padding after the last record; an error unless the metrics are bit-identical."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig]

    def __post_init__(self) -> None:
        if not self.follow_seconds > 0:
            raise OptionError(f"follow_seconds={self.follow_seconds} must be above 0.")

    def check(self) -> None:
        """Checks work directory and data. What it opens stays open for the recipe.

        Raises InfeedError for a work directory that is not writable or has no checkpoint to evaluate; for a data_dir,
        split or shard that is missing or does not have the size in the manifest; for missing features."""
        from trainer.workdir import check_checkpoint, check_writable

        workdir, trains = self.trainer.workdir, self.mode == "train"
        if trains and self.trainer.max_steps is None and self.trainer.fast_dev_run is None:
            raise OptionError("max_steps=None: the learning-rate schedule needs an end. Give --max-steps.")
        if not self.trainer.fast_dev_run and self.mode != "evaluate-continuously":  # it waits for the first checkpoint
            check_checkpoint(workdir, self.trainer.restore_step if trains else None, required=not trains)
        if trains:
            check_writable(workdir)
            _ = self.train_records
        _ = self.eval_records
        self.check_features()

    def check_features(self) -> None:
        """Raises OptionError if records lack features that this recipe reads."""

    @cached_property
    def train_records(self) -> "Records":
        """The records of train_split. Raises like open_dataset."""
        return self._opened(self.train_split)

    @cached_property
    def eval_records(self) -> "Records":
        """The records of eval_split. Raises like open_dataset."""
        return self._opened(self.eval_split)

    def _opened(self, split: str) -> "Records":
        from pipeline.sources.open_dataset import open_dataset  # loads NumPy

        return open_dataset(self.data_dir, split)


def parsed(flags: type, options: Sequence[str], program: str, description: str) -> Any:
    """An instance of `flags` with the values of the options.

    Raises InfeedError for a value that a dataclass refuses; SystemExit, after tyro's help or error on stderr, for
    --help and for unknown or malformed options."""
    said = io.StringIO()
    join_lines(flags)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(tyro.conf.OmitArgPrefixes[flags], args=options, prog=program, description=description)
    except SystemExit as left:
        for cause in _causes(left):
            if isinstance(cause, InfeedError):
                raise cause from None  # tyro would print it in a box, folded into several lines
        print(said.getvalue(), file=sys.stderr, end="")
        if not left.code:
            print(end_of_help(program))
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
