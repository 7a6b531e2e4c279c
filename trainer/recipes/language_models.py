"""Language models on packed text: char_lm has stacked LSTM layers, byte_lm is a small decoder-only
Transformer.

    infeed convert text --raw-data-dir=texts --output=shards/texts \\
        --tokenizer=characters --sequence-length=128
    infeed train char_lm --data-dir shards/texts --workdir runs/char_lm
    infeed train char_lm --data-dir shards/texts --workdir runs/char_lm \\
        --mode sample --prompt "The "

char_lm follows the TPU notebook about Shakespeare's works. For byte_lm, convert with
--sequence-length=256 and the default tokenizer, bytes. The tokenizer and the length of rows are
those of the dataset, whose text.json converters.text_to_gcs writes. JAX is imported where it is
used, so that --help and the checks do not need it."""

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import OptionError
from pipeline.logs import logger
from trainer.config import partition_rules
from trainer.recipe import DataRecipe, OptimizerConfig, TrainerConfig, settings

if TYPE_CHECKING:
    import numpy as np

    from pipeline.sources.records import Records
    from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo, Tokenizer
    from trainer.inputs import InputContext
    from trainer.models.small import LstmLanguageModel
    from trainer.models.transformer import Kernel, Transformer
    from trainer.task import Task
    from trainer.trainer import Trainer

log = logger("trainer")

KEYS = ("tokens", "segment_ids", "positions", "num_bytes")
TINY_LENGTH = 64  # tokens per row of --tiny
SHORT = settings(
    global_batch_size=8,
    eval_batch_size=32,
    iterations_per_loop=20,
    max_steps=1000,
    checkpoint_every_steps=500,
)


@dataclass(frozen=True, kw_only=True)
class PackedText(DataRecipe):
    """A model of the next token of packed text. A subclass makes the model and the tokenizer of
    --tiny."""

    dropout: float = 0.0
    """Share of each layer's outputs that training drops, against overfitting."""
    prompt: str = ""
    """The beginning of the texts that --mode sample prints."""
    temperature: float = 1.0
    """Divides the logits before --mode sample draws a token: lower is safer, higher more varied. 0:
    always the most likely token."""
    num_tokens: int | None = None
    """Tokens that --mode sample adds to the prompt, at most; it stops at the end of a document.
    Default: as many as fit into a row of the training."""
    num_samples: int = 1
    """Texts that --mode sample prints. Each follows from --seed and its number."""
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("dropout", self.dropout, at_least=0, below=1)
        check_number("temperature", self.temperature, at_least=0, below=math.inf)
        # the last ones are subclasses'
        for name in ("num_samples", "num_tokens", "layers", "width", "heads"):
            check_positive_int(name, getattr(self, name, None))

    @abstractmethod
    def model(self, rngs: Any, vocabulary_size: int) -> Any:
        """An nnx.Module with the methods of LanguageModel of trainer.recipes.tasks."""

    @abstractmethod
    def tiny_tokenizer(self) -> "Tokenizer":
        """The tokenizer of --tiny."""

    @cached_property
    def text_info(self) -> "TextInfo":
        """The tokenizer and the length of rows. Raises OptionError for data without packed text."""
        if self.description is None or self.description.text is None:
            raise OptionError(
                f"{self.data_name} has no packed text. Give the output directory of python -m "
                "converters.text_to_gcs."
            )
        return self.description.text

    def check(self) -> None:
        """Checks like DataRecipe.check. Raises OptionError for data other than packed text, and for
        a prompt that is too long or that the tokenizer cannot represent."""
        super().check()
        row = (self.text_info.sequence_length,)
        info = self.eval_records.info
        features = getattr(info.layout, "features", {})
        for key, shape in zip(KEYS, (row, row, row, ()), strict=True):
            if key not in features or features[key].shape != shape:
                raise OptionError(
                    f"{self.data_name} has no feature {key!r} of the shape {list(shape)}, which "
                    "this recipe reads. Convert the texts again: python -m converters.text_to_gcs."
                )
        if self.mode == "sample":
            if self.trainer.fast_dev_run:
                raise OptionError(
                    "fast_dev_run with mode=sample: nothing is trained to sample from. Leave one "
                    "out."
                )
            _ = self.sample_length
        if unknown := info.totals.get("num_unknown"):
            log.warning(
                "%s: %d of %d tokens are unknown to the tokenizer, but all of their bytes count: "
                "bits_per_byte is too low",
                info.name,
                unknown,
                info.totals["num_tokens"],
            )

    @cached_property
    def prompt_tokens(self) -> "np.ndarray":
        """int32 [tokens]: the start token and the prompt. Raises OptionError for characters that
        have no token."""
        import numpy as np

        tokenizer = self.text_info.tokenizer
        (tokens,) = tokenizer.encode_batch([self.prompt])
        if tokenizer.unknown is not None and tokenizer.unknown in tokens:
            characters = sorted(set(self.prompt))
            encoded = tokenizer.encode_batch(characters)
            unknown = [
                repr(character)
                for character, tokens in zip(characters, encoded, strict=True)
                if tokenizer.unknown in tokens
            ]
            what = f"characters ({', '.join(unknown)})" if unknown else "words"
            raise OptionError(
                f"prompt={self.prompt!r} has {what} that the tokenizer of {self.data_name} does "
                "not know. Leave them out."
            )
        return np.append(np.int32(tokenizer.start), tokens)

    @cached_property
    def sample_length(self) -> int:
        """Tokens of a sample, with the start token. Raises OptionError if they do not fit into a
        row: the model was trained on no longer segments."""
        prompt = len(self.prompt_tokens)
        length = self.text_info.sequence_length
        if prompt >= length:
            raise OptionError(
                f"the prompt has {prompt - 1} tokens; at most {length - 2} leave room for another "
                f"one in the {length} tokens of a row of {self.data_name}. Give a shorter one."
            )
        if self.num_tokens is None:
            return length
        if prompt + self.num_tokens > length:
            raise OptionError(
                f"num_tokens={self.num_tokens} after a prompt of {prompt - 1} tokens does not fit "
                f"into the {length} tokens of a row of {self.data_name}. Give at most "
                f"{length - prompt}."
            )
        return prompt + self.num_tokens

    def tiny_records(self, split: str) -> "Records":
        """See tiny_text."""
        from pipeline.tokenizers import TextInfo
        from trainer.recipes.tiny import tiny_text

        return tiny_text(split, TextInfo(self.tiny_tokenizer(), TINY_LENGTH, "documents"))

    def train_input(self) -> Any:
        """tokens, segment_ids and positions int32 [b, sequence_length]; num_bytes int32 [b]."""
        from pipeline.datasets import train_dataset

        return train_dataset(self.train_records, keys=KEYS)

    def eval_input(self) -> Any:
        """Like train_input, in order."""
        from pipeline.datasets import eval_dataset

        return eval_dataset(self.eval_records, keys=KEYS)

    def task(self) -> "Task":
        """See text_task."""
        from trainer.recipes.tasks import text_task

        return text_task(self)

    def prediction(self, values: dict[str, Any]) -> Mapping[str, Any]:
        """Adds bits_per_byte; None for a row without text."""
        size = values["num_bytes"]
        return values | {"bits_per_byte": values["nats"] / math.log(2) / size if size else None}

    def record_text(self, features: Mapping[str, Any]) -> str | None:
        """The text of a row."""
        from pipeline.commands.dataset_texts import row_text

        return row_text(
            self.text_info, {key: features[key].tolist() for key in ("segment_ids", "tokens")}
        )

    def samples(self, trainer: "Trainer") -> Iterator[str]:
        """The prompt with what the model adds to it, num_samples times."""
        import jax

        tokenizer = self.text_info.tokenizer
        # Every row of a batch takes as long as a sample: as few as the devices allow.
        devices = jax.device_count()
        most = trainer.config.eval_batch_size or trainer.config.global_batch_size
        rows = min(-(-self.num_samples // devices) * devices, most)
        sampler = type(trainer)(self.task(), replace(trainer.config, eval_batch_size=rows))
        for record in sampler.predict(
            self._prompts, checkpoint_path=self.checkpoint_path, gather=True
        ):
            tokens = record["tokens"].tolist()
            end = [*tokens, tokenizer.end].index(tokenizer.end, len(self.prompt_tokens))
            yield tokenizer.decode(tokens[1:end])

    def _prompts(self, ctx: "InputContext") -> Iterable[Mapping[str, Any]]:
        """The prompt and the numbers of samples: rows of this host in batches of
        ctx.global_batch_size."""
        import numpy as np

        rows = np.concatenate(list(map(np.array, ctx.hosts.host_rows(ctx.global_batch_size))))
        for start in range(0, self.num_samples, ctx.global_batch_size):
            numbers = (start + rows).astype(np.int32)
            yield {
                "prompt": np.tile(self.prompt_tokens, (len(rows), 1)),
                "number": numbers,
                "_mask": (numbers < self.num_samples).astype(np.float32),
            }


@dataclass(frozen=True, kw_only=True)
class CharLm(PackedText):
    """Trains an LSTM on packed text, then evaluates its exact bits per byte. --mode sample prints
    text.

    The tokenizer is that of the data: characters, bytes or another."""

    layers: int = 2
    """Number of LSTM layers."""
    width: int = 256
    """Features of the embedding and of each layer."""
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=8e-3, clip_norm=1.0)
    trainer: TrainerConfig = SHORT

    def model(self, rngs: Any, vocabulary_size: int) -> "LstmLanguageModel":
        """See LstmLanguageModel."""
        from trainer.models.small import LstmLanguageModel

        return LstmLanguageModel(
            vocabulary_size, rngs, layers=self.layers, width=self.width, dropout=self.dropout
        )

    def tiny_tokenizer(self) -> "CharacterTokenizer":
        """Printable ASCII."""
        from pipeline.tokenizers import CharacterTokenizer

        return CharacterTokenizer()


@dataclass(frozen=True, kw_only=True)
class ByteLm(PackedText):
    """Trains a Transformer on packed text, then evaluates its exact bits per byte. --mode sample
    prints text.

    The tokenizer is that of the data: bytes, characters or another."""

    layers: int = 4
    """Number of layers."""
    width: int = 128
    """Features of each token between layers; a multiple of twice the heads."""
    heads: int = 4
    """Heads of each attention."""
    remat: Literal["none", "attention", "dots", "full"] = "none"
    """What the backward pass computes again rather than keeps: nothing; what is of length x length;
    all but the results of products with parameters; all of a layer."""
    attention: Literal["auto", "xla", "cudnn", "splash"] = "auto"
    """What computes the attention. auto: splash on a TPU if heads have a multiple of 128 features
    and rows of 128 tokens, else xla. cudnn needs an NVIDIA GPU and --precision bf16; on an H100 it
    trained three times as fast. splash needs a TPU and such rows."""
    # Stacked over layers, the scales of the layers' norms have two dimensions.
    optimizer: OptimizerConfig = OptimizerConfig(
        learning_rate=3e-3,
        weight_decay=0.1,
        no_decay=("layers/norms/*",),
        beta2=0.99,
        clip_norm=1.0,
    )
    trainer: TrainerConfig = SHORT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (unit := 2 * self.heads):
            raise OptionError(
                f"width={self.width} is not a multiple of twice the heads, {unit}: rotary "
                "positions need an even number of features in each head. Nearest: "
                f"{-(-self.width // unit) * unit}."
            )
        if self.attention == "cudnn" and self.trainer.precision == "f32":
            raise OptionError(
                "attention=cudnn computes in 16 bits, and precision is f32. Give --precision bf16."
            )

    def model(self, rngs: Any, vocabulary_size: int) -> "Transformer":
        """See Transformer."""
        from trainer.models.transformer import Transformer

        return Transformer(
            vocabulary_size,
            rngs,
            layers=self.layers,
            width=self.width,
            heads=self.heads,
            dropout=self.dropout,
            rules=partition_rules(self.trainer.partition),
            remat=self.remat,
            kernel=self.kernel,
        )

    @cached_property
    def kernel(self) -> "Kernel":
        """What computes the attention on this process's devices. OptionError if they cannot."""
        import jax

        from trainer.models.transformer import LANES

        backend, length = jax.default_backend(), self.text_info.sequence_length
        kernel = self.attention
        if kernel == "auto":
            fits = length % LANES == 0 and self.width // self.heads % LANES == 0
            kernel = "splash" if backend == "tpu" and fits else "xla"
            log.info("attention: %s, for auto", kernel)
        needed = {
            "cudnn": backend != "gpu" and "an NVIDIA GPU",
            "splash": (backend != "tpu" or length % LANES)
            and f"a TPU and rows of a multiple of {LANES} tokens",
        }
        if needed.get(kernel):
            raise OptionError(
                f"attention={kernel} needs {needed[kernel]}. This process has {backend}, and rows "
                f"of {length} tokens. Leave it out."
            )
        return kernel

    def tiny_tokenizer(self) -> "ByteTokenizer":
        """Bytes."""
        from pipeline.tokenizers import ByteTokenizer

        return ByteTokenizer()
