"""Metrics of language models: sums over tokens and bytes of a split, never means of batches.

Their counts are exact integers up to 2**53, and equal those of the dataset if its manifest states
them; otherwise the evaluation raises EvaluationError."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from pipeline.errors import InputError
from trainer.metrics.labels import FromBatch, FromOutputs, found, found_in_outputs, rows
from trainer.metrics.means import float_sum, integer_sum, total_of, whole_of
from trainer.task import Batch, Computed, Metric

__all__ = ["BitsPerByte", "TokenAccuracy", "next_tokens"]


def next_tokens(batch: Batch) -> tuple[Array, Array]:
    """The targets of rows of packed text: the token after each, int [b, tokens], and whether it
    counts, bool.

    A target counts if it is in the segment of the token before it: neither padding nor a segment's
    first token does. batch: `tokens` and `segment_ids`, int [b, tokens]; segments are numbered from
    1, and 0 is padding."""
    tokens, segments = (jnp.pad(batch[key], ((0, 0), (0, 1))) for key in ("tokens", "segment_ids"))
    return tokens[:, 1:], (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] != 0)


@dataclass(frozen=True)
class BitsPerByte(Metric):
    """sum(nats) / ln 2 / sum(num_bytes) over the split; nan without bytes.

    Comparable between tokenizers that lose nothing: unknown text costs one token, but all of its
    bytes count.

    counts: bool [b, tokens], True where a token counts, a key of the batch or a function(outputs,
    batch). nats: the losses [b, tokens] of these tokens, a key of the outputs, a function(outputs,
    batch), or None: the outputs themselves; others may be NaN. num_bytes: int [b] from 0, the bytes
    of text that a record's tokens represent, a key of the batch or a function(outputs, batch).
    total: the name of the dataset's total that the bytes must equal; None: they are not
    compared."""

    counts: FromBatch
    nats: FromOutputs = None
    num_bytes: FromBatch = "num_bytes"
    total: str | None = "num_bytes"
    better = "min"

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """nats and bytes, float32 [2]: see float_sum and integer_sum."""
        nats = found_in_outputs(self.nats, outputs, batch)
        counts = _counts(self.counts, nats, outputs, batch, mask)
        sizes = rows("num_bytes", found(self.num_bytes, outputs, batch), batch)
        _check_integers("num_bytes", sizes)
        return {"nats": float_sum(nats, counts), "bytes": integer_sum(sizes, mask)}

    def compute(self, state: Any) -> Computed:
        """The bits per byte."""
        size = whole_of(state["bytes"])
        return total_of(state["nats"]) / math.log(2) / size if size else math.nan

    def totals(self, state: Any) -> Mapping[str, int]:
        """The sum of bytes."""
        return {} if self.total is None else {self.total: whole_of(state["bytes"])}


@dataclass(frozen=True)
class TokenAccuracy(Metric):
    """The share of counted tokens that are predicted, as their logit is the highest; nan without
    tokens.

    A token with a NaN logit is wrong; of equal logits, the lower token is predicted. targets: int
    [b, tokens], and counts: bool [b, tokens], True where a token counts; each a key of the batch or
    a function(outputs, batch). logits: [b, tokens, vocabulary], a key of the outputs, a
    function(outputs, batch), or None: the outputs themselves. total: the name of the dataset's
    total that the number of tokens must equal; None: they are not compared."""

    targets: FromBatch
    counts: FromBatch
    logits: FromOutputs = None
    total: str | None = "num_tokens"
    better = "max"

    def from_batch(self, outputs: Any, batch: Batch, mask: Array) -> Any:
        """right and tokens, float32 [2]: see integer_sum."""
        logits = found_in_outputs(self.logits, outputs, batch)
        targets = jnp.asarray(found(self.targets, outputs, batch))
        _check_integers("targets", targets)
        counts = _counts(self.counts, targets, outputs, batch, mask)
        if logits.shape[:-1] != targets.shape:
            raise InputError(
                f"the logits have the shape {list(logits.shape)}; expected {[*targets.shape]} as "
                "the targets, and the vocabulary."
            )
        right = (jnp.argmax(logits, axis=-1) == targets) & ~jnp.any(jnp.isnan(logits), axis=-1)
        return {"right": integer_sum(right, counts), "tokens": integer_sum(counts, counts)}

    def compute(self, state: Any) -> Computed:
        """The accuracy."""
        tokens = whole_of(state["tokens"])
        return whole_of(state["right"]) / tokens if tokens else math.nan

    def totals(self, state: Any) -> Mapping[str, int]:
        """The number of tokens."""
        return {} if self.total is None else {self.total: whole_of(state["tokens"])}


def _counts(where: FromBatch, values: Any, outputs: Any, batch: Batch, mask: Array) -> Array:
    """bool [b, tokens]: tokens that count, in rows that count."""
    counts = jnp.asarray(found(where, outputs, batch))
    if counts.dtype != bool or counts.ndim != 2 or counts.shape != jnp.shape(values):
        raise InputError(
            f"the counts are {counts.dtype} {list(counts.shape)} and their values "
            f"{list(jnp.shape(values))}; expected bool [records, tokens] for both, True where a "
            "token counts."
        )
    return counts & mask[:, None]


def _check_integers(name: str, values: Array) -> None:
    if not jnp.issubdtype(values.dtype, jnp.integer):
        raise InputError(f"the {name} are {values.dtype}; expected integers.")
