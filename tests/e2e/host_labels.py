"""What test_labels_on_hosts.py has its processes do."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from host_task import NumberedInput, error_of, settings

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.description import Description
from pipeline.shards.column_statistics import ColumnStatistics
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords
from trainer.metrics.classes import Accuracy
from trainer.task import Target, Task, Variables
from trainer.trainer import Trainer

RECORDS, TRAINED, BATCH, STEPS, WIDTH, CLASSES = 36, 32, 16, 4, 3, 4


def features(ids):
    """float32 [b, WIDTH] of these records."""
    return np.sin(np.outer(np.maximum(ids, 0) + 1, np.arange(1, WIDTH + 1))).astype(np.float32)


def labels(ids, mode):
    """The class of each record. None of the second half of every odd batch has one, and in evaluation every third."""
    hidden = ids % 3 == 0 if mode == "eval" else (ids // (BATCH // 2)) % 4 == 3
    return np.where(hidden, -1, np.maximum(ids, 0) % CLASSES).astype(np.int32)


class Labelled(NumberedInput):
    """The second host has no label in odd batches. wrong: the label of record 20, which is the first host's."""

    def __init__(self, ctx, wrong=None):
        self.wrong = wrong
        super().__init__(ctx, TRAINED if ctx.mode == "train" else RECORDS)

    def batch(self, step):
        made = super().batch(step)
        ids = made["_index"]
        own = {key: value for key, value in made.items() if key.startswith("_")}
        label = labels(ids, self.ctx.mode)
        if self.wrong is not None:
            label[ids == 20] = self.wrong
        return {"x": features(ids), "label": label} | own


def task():
    """A linear model, from zeros."""

    def loss_fn(variables, batch, rng, train):
        logits = batch["x"] @ variables.params["w"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), variables, logits

    start = Variables({"w": jnp.zeros((WIDTH, CLASSES))})
    metrics = {"accuracy": Accuracy("label")}
    return Task(lambda *_: start, loss_fn, optax.sgd(1.0), metrics, target=Target("label", CLASSES))


def within(order, name, **others):
    """Settings of a run in a directory of its own."""
    made = settings(order, global_batch_size=BATCH, **others)
    return replace(made, workdir=f"{order.workdir}/{name}")


def missing_labels(order):
    """Trains and evaluates with labels that are missing; then with one that is outside of the classes."""
    steps = [np.arange(step * BATCH, (step + 1) * BATCH) % TRAINED for step in range(STEPS)]
    yield "trained on", [[features(ids).tolist(), labels(ids, "train").tolist()] for ids in steps]
    ids = np.arange(RECORDS)
    yield "evaluated on", [features(ids).tolist(), labels(ids, "eval").tolist()]
    for accumulate in (1, 2):
        made = Trainer(task(), within(order, str(accumulate), accumulate=accumulate))
        trained = made.train(Labelled, max_steps=STEPS)
        result = made.evaluate(Labelled)
        params = np.asarray(jax.device_get(trained.state.variables.params["w"])).tolist()
        yield str(accumulate), [params, result.records, result.labelled, result.proven, result.metrics]
    yield "evaluated", error_of(lambda: made.evaluate(lambda ctx: Labelled(ctx, wrong=7)))
    other = Trainer(task(), within(order, "wrong"))
    yield "trained", error_of(lambda: other.train(lambda ctx: Labelled(ctx, wrong=7), max_steps=STEPS))
    yield from other_numbers(order)


COLORS, KINDS = ("black", "red", "white"), ("a", "b", "c", "d")


def colored(colors, kinds):
    """Records of a color and a kind, in the numbers of these names; "pink" is what ours call "white"."""
    schema = Schema("pets", {"label": Feature("int64"), "color": Feature("int64")})
    columns = {"color": ColumnStatistics(RECORDS, 0, categories=dict.fromkeys(colors, 1))}
    named = [COLORS[n % 3] for n in range(RECORDS)]
    named = [name if name in colors else "pink" for name in named]
    examples = [{"color": colors.index(name), "label": kinds.index(KINDS[n % 4])} for n, name in enumerate(named)]
    description = Description(schema, Labels("label", 0, kinds), columns)
    return ExampleRecords("pets", schema, examples, description.labels, description=description)


def other_numbers(order):
    """Trains on records, and evaluates them and others that number the same colors and kinds differently."""

    def loss_fn(variables, batch, rng, train):
        logits = variables.params["w"][batch["color"] + 1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]), variables, logits

    start = Variables({"w": jnp.sin(jnp.arange(16.0)).reshape(4, 4)})
    target = Target("label", CLASSES)
    made = Trainer(
        Task(lambda *_: start, loss_fn, optax.sgd(1.0), {"accuracy": Accuracy("label")}, target=target),
        within(order, "numbers"),
    )

    def reading(make, *names):
        return lambda ctx: make(colored(*names), global_batch=ctx.global_batch_size, hosts=ctx.hosts)

    made.train(reading(train_dataset, COLORS, KINDS), max_steps=2)
    for name, colors in (("same", COLORS), ("mapped", COLORS[::-1]), ("unseen", ("pink", "red", "black"))):
        kinds = KINDS if name == "same" else KINDS[::-1]
        result = made.evaluate(reading(eval_dataset, colors, kinds))
        yield name, [result.metrics, result.unseen, result.proven]
    yield "refused", error_of(lambda: made.evaluate(reading(eval_dataset, COLORS, (*KINDS, "e"))))
