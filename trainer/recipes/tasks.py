"""The tasks of recipes: of a classifier of images, and of a language model, which predicts the next
token of packed text, or draws samples token by token inside one compiled loop."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from pipeline.logs import logger
from pipeline.spec import MASK
from trainer.metrics.classes import Accuracy, TopK
from trainer.metrics.means import Perplexity
from trainer.metrics.tokens import BitsPerByte, TokenAccuracy, next_tokens
from trainer.nnx_task import nnx_task
from trainer.optimizers.build import make_optimizer
from trainer.recipes.image_data import IMAGE
from trainer.task import Augment, Batch, Target, Task

SOFT_LABELS = "labels"
log = logger("trainer")


def classifier_task(
    config: Any,
    make_model: Callable[[Any], Any],
    target: Target,
    *,
    logits_of: Callable[[Any, Batch], Array] = lambda model, batch: model(
        batch[IMAGE], batch[MASK]
    ),
    top5: bool = False,
    augment: Augment | None = None,
    class_weights: np.ndarray | None = None,
) -> Task:
    """Cross entropy and accuracy of a model, on the target.

    config: a recipe; its optimizer and precision count. logits_of: calls the model; by default with
    the feature "image" and the mask. In training, SOFT_LABELS, shares of the classes, take the
    label's place if `augment` makes them. class_weights: float32 [classes], of the records of each
    in training. Predicts the class and its probability; also the label, where the batch has one."""

    def labels(_: Any, batch: Batch) -> Array:
        return batch[target.key] - target.base

    def loss(model: Any, batch: Batch) -> tuple[Array, Array]:
        logits = logits_of(model, batch)
        if SOFT_LABELS in batch:
            return optax.softmax_cross_entropy(logits, batch[SOFT_LABELS]), logits
        own = labels(logits, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, own), logits

    def predict(model: Any, batch: Batch) -> dict[str, Array]:
        probabilities = jax.nn.softmax(logits_of(model, batch))
        best = jnp.argmax(probabilities, axis=-1) + target.base
        label = {"label": batch[target.key]} if target.key in batch else {}
        return {"class": best, **label, "probability": probabilities.max(axis=-1)}

    def weight(batch: Batch) -> Array:
        if SOFT_LABELS in batch:
            return batch[SOFT_LABELS] @ class_weights
        return jnp.asarray(class_weights)[labels({}, batch)]

    task = nnx_task(
        make_model,
        loss,
        make_optimizer(config.optimizer, config.run),
        {"accuracy": Accuracy(labels)} | ({"top5_accuracy": TopK(5, labels)} if top5 else {}),
        predict,
        augment=augment,
        precision=config.trainer.precision,
        target=target,
    )
    return task if class_weights is None else replace(task, sample_weight=weight)


def balanced_weights(counts: Sequence[int]) -> np.ndarray:
    """float32 [classes]: what makes all classes that have records count alike, with a mean of 1
    over the records.

    counts: of the records of each class in training."""
    records = np.array(counts, np.float64)
    weights = records.sum() / np.maximum(records, 1) / max(1, np.count_nonzero(records))
    weights[records == 0] = 0.0
    lightest, heaviest = weights[records > 0].min(initial=0), weights.max(initial=0)
    log.info("class_weights: records weigh %.3g to %.3g in the loss", lightest, heaviest)
    return weights.astype(np.float32)


class LanguageModel(Protocol):
    """What Transformer and LstmLanguageModel have in common."""

    def __call__(self, tokens: Array, segment_ids: Array, positions: Array) -> Array:
        """Logits float32 [b, length, vocabulary] of the token after each; all arguments are int [b,
        length]."""
        ...

    def start_state(self, rows: int, length: int) -> Any:
        """The state before the first token of `rows` segments of at most `length` tokens."""
        ...

    def step(self, tokens: Array, position: Array, state: Any) -> tuple[Array, Any]:
        """Logits float32 [b, vocabulary] after one more token of each segment, and the next
        state."""
        ...


def text_task(config: Any) -> Task:
    """Cross entropy of the next token; bits per byte, perplexity per token and token accuracy of an
    evaluation.

    A record's loss is the sum of the nats of its tokens that count, divided by the most that a row
    can have. So every token weighs the same, and the loss is nats per token where rows have one
    segment and no padding, and otherwise lower. Predicts nats, num_tokens and num_bytes of each
    row; with mode="sample" the tokens int32 [b, sample_length] of samples, from batches with
    prompts int32 [b, tokens] and their numbers int32 [b].

    config: a PackedText, which imports this module."""
    most = config.text_info.sequence_length - 1

    def outputs_of(model: Any, batch: Batch) -> dict[str, Array]:
        logits = model(batch["tokens"], batch["segment_ids"], batch["positions"])
        return {
            "logits": logits,
            "nats": optax.softmax_cross_entropy_with_integer_labels(logits, targets({}, batch)),
        }

    def loss(model: Any, batch: Batch) -> tuple[Array, dict[str, Array]]:
        outputs = outputs_of(model, batch)
        return _row_sums(outputs["nats"], batch) / most, outputs

    def predict(model: Any, batch: Batch) -> dict[str, Array]:
        nats = _row_sums(outputs_of(model, batch)["nats"], batch)
        return {
            "nats": nats,
            "num_tokens": counts({}, batch).sum(axis=1),
            "num_bytes": batch["num_bytes"],
        }

    def sample(model: Any, batch: Batch) -> dict[str, Array]:
        key_of = partial(jax.random.fold_in, jax.random.key(config.trainer.seed))
        tokens = sampled(
            model,
            batch["prompt"],
            jax.vmap(key_of)(batch["number"]),
            length=config.sample_length,
            temperature=config.temperature,
            end=config.text_info.tokenizer.end,
        )
        return {"tokens": tokens}

    metrics = {
        "bits_per_byte": BitsPerByte(counts, "nats"),
        "perplexity": Perplexity(counts, lambda outputs, _: outputs["nats"]),
        "token_accuracy": TokenAccuracy(targets, counts, "logits"),
    }
    return nnx_task(
        partial(config.model, vocabulary_size=config.text_info.tokenizer.vocabulary_size),
        loss,
        make_optimizer(config.optimizer, config.run),
        metrics,
        sample if config.mode == "sample" else predict,
        precision=config.trainer.precision,
        independent_rows=not config.dropout,
    )


def targets(_: Any, batch: Batch) -> Array:
    """See next_tokens."""
    return next_tokens(batch)[0]


def counts(_: Any, batch: Batch) -> Array:
    """See next_tokens."""
    return next_tokens(batch)[1]


def _row_sums(nats: Array, batch: Batch) -> Array:
    return jnp.sum(jnp.where(counts({}, batch), nats, 0), axis=1)


def sampled(
    model: LanguageModel, prompts: Array, keys: Array, *, length: int, temperature: float, end: int
) -> Array:
    """int32 [b, length]: the prompts and the tokens after them, up to `end` and then only `end`.

    prompts: int [b, tokens], with the start token. keys: a random key per row, from which its
    tokens follow, whatever else is in the batch. temperature: what logits are divided by; 0 takes
    the most likely token. The loop stops once every row has ended."""
    rows, prompted = prompts.shape
    tokens = jnp.full((rows, length), end, jnp.int32).at[:, :prompted].set(prompts)

    def goes_on(carry: tuple[Array, Array, Any]) -> Array:
        position, tokens, _ = carry
        ended = (position >= prompted) & jnp.all(tokens[:, position] == end)
        return (position + 1 < length) & ~ended

    def step(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
        position, tokens, state = carry
        now = tokens[:, position]
        logits, state = model.step(now, position, state)
        chosen = _chosen(logits, keys, position, temperature)
        chosen = jnp.where((position >= prompted) & (now == end), end, chosen)
        following = jnp.where(position + 1 < prompted, tokens[:, position + 1], chosen)
        return position + 1, tokens.at[:, position + 1].set(following), state

    carry = (jnp.int32(0), tokens, model.start_state(rows, length))
    return jax.lax.while_loop(goes_on, step, carry)[1]


def _chosen(logits: Array, keys: Array, position: Array, temperature: float) -> Array:
    if not temperature:
        return jnp.argmax(logits, axis=-1).astype(jnp.int32)

    def choose(key: Array, logits: Array) -> Array:
        # no overflow
        return jax.random.categorical(
            jax.random.fold_in(key, position), (logits - logits.max()) / temperature
        )

    return jax.vmap(choose)(keys, logits).astype(jnp.int32)
