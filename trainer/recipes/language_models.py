"""Language models on packed text: char_lm has stacked LSTM layers, byte_lm is a small decoder-only Transformer.

    infeed convert text --raw_data_dir=texts --output=shards/texts --tokenizer=characters --sequence_length=128
    infeed train char_lm --data-dir shards/texts --workdir runs/char_lm
    infeed train char_lm --data-dir shards/texts --workdir runs/char_lm --mode sample --prompt "The "

char_lm follows the TPU notebook about Shakespeare's works. For byte_lm, convert with --sequence_length=256 and the
default tokenizer, bytes."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.errors import OptionError
from trainer.config import check_positive_int
from trainer.recipe import OptimizerConfig, TrainerConfig, settings
from trainer.recipes.packed_text import PackedText

if TYPE_CHECKING:
    from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer
    from trainer.models.lstm import LstmLanguageModel
    from trainer.models.transformer import Transformer

SHORT = settings(
    global_batch_size=8, eval_batch_size=32, iterations_per_loop=20, max_steps=1000, checkpoint_every_steps=500
)


@dataclass(frozen=True, kw_only=True)
class CharLm(PackedText):
    """Trains an LSTM on packed text, then evaluates its exact bits per byte. --mode sample prints text.

    The tokenizer is that of the data: characters, bytes or another."""

    layers: int = 2
    """Number of LSTM layers."""
    width: int = 256
    """Features of the embedding and of each layer."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=8e-3, clip_norm=1.0)
    trainer: TrainerConfig = SHORT

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


@dataclass(frozen=True, kw_only=True)
class ByteLm(PackedText):
    """Trains a Transformer on packed text, then evaluates its exact bits per byte. --mode sample prints text.

    The tokenizer is that of the data: bytes, characters or another."""

    layers: int = 4
    """Number of layers."""
    width: int = 128
    """Features of each token between layers; a multiple of twice the heads."""
    heads: int = 4
    """Heads of each attention."""
    # Stacked over layers, the scales of the layers' norms have two dimensions.
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=3e-3, weight_decay=0.1, no_decay=("layers/norms/*",), beta2=0.99, clip_norm=1.0
    )
    trainer: TrainerConfig = SHORT

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("layers", "width", "heads"):
            check_positive_int(name, getattr(self, name))
        if self.width % (unit := 2 * self.heads):
            raise OptionError(
                f"width={self.width} is not a multiple of twice the heads, {unit}: rotary positions need an even "
                f"number of features in each head. Nearest: {-(-self.width // unit) * unit}."
            )

    def model(self, rngs: Any, vocabulary_size: int) -> "Transformer":
        """See Transformer."""
        from trainer.models.transformer import Transformer

        return Transformer(
            vocabulary_size, rngs, layers=self.layers, width=self.width, heads=self.heads, dropout=self.dropout
        )

    def tiny_tokenizer(self) -> "ByteTokenizer":
        """Bytes."""
        from pipeline.tokenizers import ByteTokenizer

        return ByteTokenizer()
