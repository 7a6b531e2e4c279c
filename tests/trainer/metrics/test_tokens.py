"""Metrics of packed text: the numbers of its documents, however they are packed, batched and split over hosts."""

import math
from contextlib import ExitStack
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from converters.text.packing import EncodedDocuments, packed_rows
from pipeline.errors import EvaluationError
from pipeline.hosts import Hosts
from pipeline.tokenizers import ByteTokenizer, TextInfo
from trainer.config import TrainerConfig
from trainer.loop.evaluation import Evaluation
from trainer.loop.job import Job
from trainer.loop.session import open_session
from trainer.mesh.placement import Placement
from trainer.metrics.tally import computed, empty_tallies, totals_counted, with_batch
from trainer.metrics.tokens import BitsPerByte, TokenAccuracy, next_tokens
from trainer.task import Task, TrainState, Variables

LENGTH, DOCUMENTS = 24, 90
PACKINGS = ("documents", "concat")
METRICS = {
    "bits_per_byte": BitsPerByte(lambda outputs, batch: next_tokens(batch)[1], "nats"),
    "token_accuracy": TokenAccuracy(
        lambda outputs, batch: next_tokens(batch)[0],
        lambda outputs, batch: next_tokens(batch)[1],
        "logits",
    ),
}


def documents():
    """Texts of 0 to 70 letters, half of them of two bytes; and a table of outputs: the nats of each token and the end.

    What it claims per byte differs: long documents are easier."""
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(list("abcäöü"), rng.integers(0, 70))) for _ in range(DOCUMENTS)]
    nats = [
        rng.exponential(4 / (1 + len(text) / 8), len(text.encode()) + 1).astype(np.float32)
        for text in texts
    ]
    right = [each < 0.4 for each in nats]
    return texts, nats, right


def split(packing):
    """The table as rows of packed text. Outputs that must not count are NaN, and right."""
    texts, nats, right = documents()
    info = TextInfo(ByteTokenizer(), LENGTH, packing)
    encoded = EncodedDocuments(info, [text.encode() for text in texts])
    rows = packed_rows(np.diff(encoded.starts).tolist(), LENGTH, packing)
    sizes = encoded.num_bytes(rows)
    batch = encoded.rows(rows) | {
        "num_bytes": np.array([sum(map(sizes.__getitem__, row)) for row in rows], np.int32),
        "nats": np.full((len(rows), LENGTH), np.nan, np.float32),
        "right": np.ones((len(rows), LENGTH), bool),
    }
    for row, pieces in enumerate(rows):
        at = 0
        for piece in pieces:
            # the output at a place is about the token after it
            places = slice(at, at + piece.size - 1)
            batch["nats"][row, places] = nats[piece.document][piece.begin : piece.end]
            batch["right"][row, places] = right[piece.document][piece.begin : piece.end]
            at += piece.size
    return batch


SPLITS = {packing: split(packing) for packing in PACKINGS}


def truth():
    texts, nats, right = documents()
    size = sum(len(text.encode()) for text in texts)
    tokens = size + len(texts)
    bits = math.fsum(map(float, np.concatenate(nats))) / math.log(2)
    totals = {"num_bytes": size, "num_tokens": tokens}
    return totals, bits / size, np.concatenate(right).sum() / tokens


def outputs_of(batch):
    named = jnp.where(batch["right"], next_tokens(batch)[0], 0)
    return {"nats": batch["nats"], "logits": jax.nn.one_hot(named, ByteTokenizer.vocabulary_size)}


def evaluated(make_input, packing, batch, devices, totals=None):
    def loss_fn(variables, batch, rng, train):
        return batch["num_bytes"], variables, outputs_of(batch)

    def input_fn(ctx):
        source = make_input(SPLITS[packing], ctx)
        source.info = replace(source.info, totals=truth()[0] if totals is None else totals)
        return source

    task = Task(lambda *_: Variables(()), loss_fn, optax.sgd(1), METRICS)
    config = TrainerConfig(workdir="unused", global_batch_size=batch, iterations_per_loop=1)
    job = Job(task, config, Placement.of(jax.devices()[:devices]))
    with ExitStack() as stack:
        session = stack.enter_context(open_session(job))
        state = TrainState(jnp.int32(0), Variables(()), (), jnp.zeros(2, jnp.uint32))
        return Evaluation(session, job.open("eval", input_fn), state, 0).epoch()


@pytest.mark.parametrize(
    ("packing", "batch", "devices"),
    [("documents", 1, 1), ("documents", 512, 4), ("concat", 7, 1), ("concat", 64, 4)],
)
def test_any_packing_batch_size_and_devices_give_the_counts_and_bits_of_the_documents(
    make_input, packing, batch, devices
):
    result = evaluated(make_input, packing, batch, devices)
    totals, bits, accuracy = truth()
    assert (result.totals, result.metrics["token_accuracy"]) == (totals, accuracy)
    assert result.metrics["bits_per_byte"] == pytest.approx(bits, rel=1e-12)


@pytest.fixture(scope="module")
def state_of():
    """state_of(batch): the states of the metrics for a batch; compiled once per shape."""

    def states(batch):
        batch = batch | {"_mask": jnp.ones(len(batch["num_bytes"]))}
        made = (
            metric.from_batch(outputs_of(batch), batch, batch["_mask"] > 0)
            for metric in METRICS.values()
        )
        return dict(zip(METRICS, made, strict=True))

    return jax.jit(states)


@pytest.mark.parametrize("packing", PACKINGS)
def test_hosts_that_add_up_their_rows_have_the_same_numbers(state_of, packing):
    rows, batch = SPLITS[packing], 12
    padded = {
        key: np.pad(value, [(0, -len(value) % batch), *[(0, 0)] * (value.ndim - 1)])
        for key, value in rows.items()
    }
    totals, bits, accuracy = truth()
    for count in (1, 2, 3, 4):
        states = []
        for host in range(count):
            for start in range(0, len(padded["num_bytes"]), batch):
                for mine in Hosts(host, count).host_rows(batch):
                    some = slice(start + mine.start, start + mine.stop)
                    states.append(state_of({key: value[some] for key, value in padded.items()}))
        summed = jax.tree.map(lambda *leaves: np.sum(np.float64(leaves), 0), *states)
        found = {name: metric.compute(summed[name]) for name, metric in METRICS.items()}
        assert found == {
            "bits_per_byte": pytest.approx(bits, rel=1e-12),
            "token_accuracy": accuracy,
        }
        assert METRICS["bits_per_byte"].totals(summed["bits_per_byte"]) == {
            "num_bytes": totals["num_bytes"]
        }
        assert METRICS["token_accuracy"].totals(summed["token_accuracy"]) == {
            "num_tokens": totals["num_tokens"]
        }


def test_an_evaluation_that_did_not_count_what_the_dataset_states_raises(make_input):
    totals = truth()[0]
    text = rf"'token_accuracy' added up num_tokens={totals['num_tokens']}; the dataset states {totals['num_tokens'] + 1}"
    with pytest.raises(EvaluationError, match=text):
        evaluated(make_input, "concat", 7, 1, totals | {"num_tokens": totals["num_tokens"] + 1})


def test_sums_are_exact_beyond_what_int32_and_float32_hold():
    """4 GiB of text in steps of 4 MiB and some bytes, and as many nats with a fraction that float32 would lose."""
    metrics = {"bits_per_byte": METRICS["bits_per_byte"]}
    size = 2**20 + 65_501
    row = {
        "tokens": [[2, 5]],
        "segment_ids": [[1, 1]],
        "num_bytes": [size],
        "nats": [[1000.1, np.nan]],
    }
    batch = {
        key: jnp.asarray(
            np.repeat(np.array(value, np.float32 if key == "nats" else np.int32), 4, 0)
        )
        for key, value in row.items()
    }
    batch["_mask"] = jnp.float32([1, 1, 0, 1])
    losses, outputs = jnp.zeros(4), {"nats": batch["nats"]}

    @jax.jit
    def epoch():
        tallies, _ = empty_tallies(losses, outputs, batch, metrics)
        return jax.lax.fori_loop(
            0, 1000, lambda _, so_far: with_batch(so_far, losses, outputs, batch, metrics), tallies
        )

    tallies = jax.device_get(epoch())
    assert totals_counted(tallies, metrics) == {"bits_per_byte": {"num_bytes": 3000 * size}}
    assert 3000 * size > 2**31
    bits = float(np.float32(1000.1)) / math.log(2) / size
    assert computed(tallies, metrics)[0]["bits_per_byte"] == pytest.approx(bits, rel=1e-13)


def test_a_token_whose_logits_are_nan_is_wrong_and_one_without_records_is_nan():
    logits = jnp.float32([[[0, 1], [0, np.nan], [1, 0]]])
    batch = {
        "_mask": jnp.ones(1),
        "counts": jnp.array([[True, True, True]]),
        "targets": jnp.array([[1, 1, 1]]),
    }
    metric = TokenAccuracy("targets", "counts")
    state = jax.tree.map(np.float64, metric.from_batch(logits, batch, jnp.array([True])))
    assert metric.compute(state) == 1 / 3
    assert math.isnan(metric.compute(jax.tree.map(np.zeros_like, state)))
