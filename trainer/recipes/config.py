"""The flags that the command of every recipe has. Needs no JAX, so that --help is there at once."""

from dataclasses import dataclass
from typing import Literal

import tyro

from trainer.config import TrainerConfig

__all__ = ["RecipeConfig"]


@dataclass(frozen=True, kw_only=True)
class RecipeConfig:
    """A recipe's own Config adds its flags to these, and gives `trainer` its defaults."""

    data_dir: str
    """Directory with the shards and their manifest.json."""
    mode: Literal["train", "evaluate", "evaluate-continuously", "predict"] = "train"
    """train: train, then evaluate. evaluate: only evaluate the newest checkpoint. evaluate-continuously: evaluate the
    checkpoints that another process saves, as they come. predict: write <workdir>/predictions.jsonl, a line for each
    record of the validation split."""
    follow_seconds: float = 3600.0
    """evaluate-continuously ends when no new checkpoint has come for so long, and after that of max_steps."""
    check_padding: bool = False
    """Evaluate with three kinds of padding behind the last record: an error unless the metrics have the same bits."""
    trainer: tyro.conf.OmitArgPrefixes[TrainerConfig]
