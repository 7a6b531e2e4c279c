"""What the processes of host_worker.py train: a dense model, its inputs and settings; and how they tell of it."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import PartitionSpec as P

from pipeline.errors import InfeedError
from trainer.augment import cutmix, one_hot
from trainer.config import TrainerConfig
from trainer.inputs import InputInfo
from trainer.metrics.binary import AUC
from trainer.metrics.classes import ConfusionMatrix
from trainer.metrics.means import Perplexity
from trainer.task import Task, Variables

RAW, IMAGE, LABEL = "image/encoded", "image", "image/class/label"


def dense_task(learning_rate=0.05, width=32, rich=False):
    """Two dense layers over the pixels, cut over the model axis, with noise from the step's key.

    rich: with every kind of metric, which cost more to compile than the model, and with an augmentation for which
    records of one host meet those of another."""

    def init(rng, spec):
        a, b = jax.random.split(rng)
        pixels = int(np.prod(spec["image"].shape[1:]))
        first, last = jax.random.normal(a, (pixels, width)), jax.random.normal(b, (width, 10))
        return Variables({"a": first / 32, "b": last / 8})

    def loss_fn(variables, batch, rng, train):
        x = batch["image"].reshape(len(batch["image"]), -1).astype(jnp.float32) / 128 - 1
        if train:
            x = x + 0.1 * jax.random.normal(rng, x.shape)
        logits = jnp.tanh(x @ variables.params["a"]) @ variables.params["b"]
        labels = batch[LABEL] - 1
        if "labels" in batch:
            losses = optax.softmax_cross_entropy(logits, batch["labels"])
        else:
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
        return losses, variables, (logits, labels)

    def augment(batch):
        return cutmix(one_hot(batch, LABEL, 10, base=1))

    def accuracy(outputs, batch):
        return jnp.argmax(outputs[0], -1) == outputs[1]

    def place(outputs, batch):
        # Which record is in which row of the global batch, as the devices see it; exact in float32.
        return jnp.arange(len(batch["_mask"])) * (batch.get("_index", 0) + 2) % 1009

    def is_high(outputs, batch):
        return outputs[1] > 4

    def pixel(outputs, batch):
        # Of the record alone, so the same bits on any mesh.
        return batch["image"].reshape(len(outputs[1]), -1)[:, 28] / 255

    others = {
        "confusion": ConfusionMatrix(lambda found, _: found[1], lambda found, _: found[0]),
        "area": AUC(is_high, pixel, bins=256),
        "perplexity": Perplexity(),
    }
    cut = {"a": P(None, "model"), "b": P("model")}
    return Task(
        init,
        loss_fn,
        optax.adam(learning_rate / 50),
        {"accuracy": accuracy, "place": place} | (others if rich else {}),
        lambda name, shape: cut[name],
        augment=augment if rich else None,
    )


def class_scores(variables, batch):
    """A predict_fn of dense_task."""
    x = batch["image"].reshape(batch["image"].shape[0], -1).astype(jnp.float32) / 128 - 1
    return {"scores": jnp.tanh(x @ variables.params["a"]) @ variables.params["b"]}


class Recorded:
    """input_fns over the digits; `batches` gets [rows, ids, masks] of every batch that the trainer took."""

    def __init__(self, data_dir, **options):
        self.data_dir, self.options, self.batches = data_dir, options, []

    def __call__(self, ctx):
        from pipeline.datasets import eval_dataset, train_dataset
        from pipeline.ops import DecodeJpeg, RandomShift

        decode = DecodeJpeg(RAW, into=IMAGE, shape=(32, 32, 1))
        options = {"keys": (IMAGE, LABEL)} | self.options
        if ctx.mode == "train":
            ops = [decode, RandomShift(IMAGE, pixels=2)]
            data = train_dataset(self.data_dir, "train", ops=ops, **options)
        else:
            data = eval_dataset(self.data_dir, "validation", ops=[decode], **options)
        source = data(ctx)
        rows = [row for part in ctx.hosts.rows for row in part]
        self.source, batches = source, source.batches

        def recording(position=None):
            for batch in batches(position):
                self.batches.append([rows, batch["_index"].tolist(), batch["_mask"].tolist()])
                yield batch

        source.batches = recording
        return source


class NumberedInput:
    """The Input protocol over images that hold their record's number; training goes round and round."""

    def __init__(self, ctx, records):
        self.ctx, self.records = ctx, records
        self.info = InputInfo(
            self.batch(0),
            "numbered",
            start=0,
            num_records=records,
            steps_per_epoch=-(-records // ctx.global_batch_size),
            expected_crc=records * (records - 1) // 2,
        )

    def batch(self, step):
        size = self.ctx.global_batch_size
        ids = np.array([step * size + row for part in self.ctx.hosts.rows for row in part])
        if self.ctx.mode == "train":
            ids %= self.records
        ids = np.where(ids < self.records, ids, -1).astype(np.int32)
        image = np.broadcast_to(ids[:, None, None], (len(ids), 8, 8)).astype(np.uint8)
        mask = (ids >= 0).astype(np.float32)
        extra = {"_mask": mask, "_index": ids, "_crc": np.maximum(ids, 0).astype(np.uint32)}
        return {"image": image, LABEL: 1 + np.maximum(ids, 0) % 10} | extra

    def batches(self, position):
        last = 10**6 if self.ctx.mode == "train" else self.info.steps_per_epoch
        return map(self.batch, range(position, last))

    def advance(self, position, n):
        return position + n

    def state(self, position):
        return {"position": position}

    def restore(self, state):
        return state["position"]


def checksums(state):
    """Of every array, however it is cut: the parts of this process only."""
    return [
        zlib.crc32(b"".join(np.asarray(s.data).tobytes() for s in leaf.addressable_shards))
        for leaf in leaves(state)
    ]


def whole(state):
    """Every parameter, put together from all hosts, as its bytes in hexadecimal: 33,000 numbers take JSON 0.1 s."""
    gather = multihost_utils.process_allgather
    return [gather(leaf, tiled=True).tobytes().hex() for leaf in leaves(state)]


def leaves(state):
    return jax.tree.leaves(state.variables.params)


def plain_batches(ctx, at=None, then=None):
    """Endless random batches; batch `at` is what `then` makes of it, None for the end."""
    rng = np.random.default_rng(ctx.seed)
    for step in range(10**6):
        rows = rng.integers(0, 256, (ctx.per_host_batch_size, 8, 8)).astype(np.uint8)
        batch = {"image": rows, LABEL: rng.integers(1, 11, len(rows)).astype(np.int32)}
        if step == at and then is not None:
            batch = then(batch)
            if batch is None:
                return
        yield batch


def settings(order, **others):
    defaults = {"global_batch_size": 16, "iterations_per_loop": 5, "checkpoint_every_steps": None}
    return TrainerConfig(
        workdir=order.workdir,
        host_timeout_seconds=order.host_timeout_seconds,
        **defaults | {"seed": 3} | others,
    )


def error_of(call):
    try:
        call()
    except InfeedError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
