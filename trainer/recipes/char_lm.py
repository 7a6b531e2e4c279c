"""A character-level language model: stacked LSTM layers, as in the TPU notebook about Shakespeare's works.

infeed convert text --raw_data_dir=texts --output=shards/texts --tokenizer=characters --sequence_length=128
infeed train char_lm --data-dir shards/texts --workdir runs/char_lm
infeed train char_lm --data-dir shards/texts --workdir runs/char_lm --mode sample --prompt "The "
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trainer.config import check_positive_int
from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes.packed_text import PackedText

if TYPE_CHECKING:
    from pipeline.tokenizers import CharacterTokenizer
    from trainer.models.lstm import LstmLanguageModel

__all__ = ["Config"]


@dataclass(frozen=True, kw_only=True)
class Config(PackedText):
    """Trains an LSTM on packed text, then evaluates its exact bits per byte. --mode sample prints text.

    The tokenizer is that of the data: characters, bytes or another."""

    layers: int = 2
    """Number of LSTM layers."""
    width: int = 256
    """Features of the embedding and of each layer."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=8e-3, clip_norm=1.0)
    trainer: TrainerConfig = settings(
        global_batch_size=8, eval_batch_size=32, iterations_per_loop=20, max_steps=1000, checkpoint_every_steps=500
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layers", "width"):
            check_positive_int(name, getattr(self, name))

    def model(self, rngs: Any, vocabulary_size: int) -> "LstmLanguageModel":
        """See LstmLanguageModel."""
        from trainer.models.lstm import LstmLanguageModel

        return LstmLanguageModel(vocabulary_size, rngs, layers=self.layers, width=self.width, dropout=self.dropout)

    def tiny_tokenizer(self) -> "CharacterTokenizer":
        """Printable ASCII."""
        from pipeline.tokenizers import CharacterTokenizer

        return CharacterTokenizer()
