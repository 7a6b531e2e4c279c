"""The flags that the command of every recipe has, and the checks of them that need neither JAX nor TensorFlow.

Imports little at its top: --help is there immediately, and a wrong flag is told within a second."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import tyro

from pipeline.shards.errors import OptionError
from trainer.config import TrainerConfig

if TYPE_CHECKING:
    from pipeline.sources.records import Records

__all__ = ["RecipeConfig"]


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """A recipe's own Config adds its flags to these, and gives `trainer` its defaults."""

    data_dir: str
    """Directory with the shards and their manifest.json."""
    train_split: str = "train"
    """What to train on, also a part: train[:90%]."""
    eval_split: str = "validation"
    """What to evaluate and to predict: validation, test, train[90%:]."""
    mode: Literal["train", "evaluate", "evaluate-continuously", "predict"] = "train"
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint. evaluate-continuously: evaluate the
    checkpoints that another process saves, as they come. predict: write <workdir>/predictions.jsonl, a line for each
    record of the validation split."""
    follow_seconds: float = 3600.0
    """evaluate-continuously ends when no new checkpoint has come for so long, and after that of max_steps."""
    check_padding: bool = False
    """Evaluate with three kinds of padding behind the last record: an error unless the metrics have the same bits."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig]

    def __post_init__(self) -> None:
        if not self.follow_seconds > 0:
            raise OptionError(f"follow_seconds={self.follow_seconds} is not allowed. It must be above 0.")

    def check(self) -> None:
        """Looks at work directory and data. What it opens stays open for the recipe.

        Raises InfeedError: a work directory that cannot be written to, or has no checkpoint to evaluate; a data_dir,
        split or shard that is missing or has another size than the manifest says; features that the recipe misses."""
        from trainer.workdir import check_checkpoint, check_writable

        workdir, trains = self.trainer.workdir, self.mode == "train"
        if trains and self.trainer.max_steps is None and self.trainer.fast_dev_run is None:
            raise OptionError("max_steps=None: the learning rate follows a schedule that ends. Give --max-steps.")
        if not self.trainer.fast_dev_run and self.mode != "evaluate-continuously":  # it waits for the first checkpoint
            check_checkpoint(workdir, self.trainer.restore_step if trains else None, required=not trains)
        if trains:
            check_writable(workdir)
            _ = self.train_records
        _ = self.eval_records
        self.check_features()

    def check_features(self) -> None:
        """Raises OptionError where records lack what this recipe reads."""

    @cached_property
    def train_records(self) -> "Records":
        """Those of train_split. Raises as open_dataset."""
        return self._opened(self.train_split)

    @cached_property
    def eval_records(self) -> "Records":
        """Those of eval_split. Raises as open_dataset."""
        return self._opened(self.eval_split)

    def _opened(self, split: str) -> "Records":
        from pipeline.sources.opening import open_dataset  # loads NumPy

        return open_dataset(self.data_dir, split)
