"""What the processes of host_worker.py train: a dense model on the digits, and inputs that note what was taken."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

from trainer.metrics.binary import AUC
from trainer.metrics.classes import ConfusionMatrix
from trainer.metrics.means import Mean, Perplexity
from trainer.task import Task, Variables

RAW, IMAGE, LABEL = "image/encoded", "image", "image/class/label"


def dense_task(learning_rate=0.05, width=32):
    """Two dense layers over the pixels, cut over the model axis, with noise from the step's key."""

    def init(rng, spec):
        a, b = jax.random.split(rng)
        pixels = int(np.prod(spec["image"].shape[1:]))
        params = {"a": jax.random.normal(a, (pixels, width)) / 32, "b": jax.random.normal(b, (width, 10)) / 8}
        return Variables(params)

    def loss_fn(variables, batch, rng, train):
        x = batch["image"].reshape(len(batch["image"]), -1).astype(jnp.float32) / 128 - 1
        if train:
            x = x + 0.1 * jax.random.normal(rng, x.shape)
        logits = jnp.tanh(x @ variables.params["a"]) @ variables.params["b"]
        labels = batch[LABEL] - 1
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels), variables, (logits, labels)

    def accuracy(outputs, batch):
        return jnp.argmax(outputs[0], -1) == outputs[1]

    def place(outputs, batch):
        # Which record is in which row of the global batch, as the devices see it; exact in float32.
        return jnp.arange(len(batch["_mask"])) * (batch.get("_index", 0) + 2) % 1009

    def logits_of(outputs, batch):
        return outputs[0]

    def labels_of(outputs, batch):
        return outputs[1]

    def is_high(outputs, batch):
        return outputs[1] > 4

    def pixel(outputs, batch):
        # Of the record alone, so the same bits on any mesh.
        return batch["image"].reshape(len(outputs[1]), -1)[:, 28] / 255

    cut = {"a": P(None, "model"), "b": P("model")}
    return Task(
        init,
        loss_fn,
        optax.adam(learning_rate / 50),
        {
            "accuracy": accuracy,
            "place": place,
            "confusion": ConfusionMatrix(labels_of, logits_of),
            "area": AUC(is_high, pixel),
            "perplexity": Perplexity(),
            "pixel": Mean(pixel, labels_of),
        },
        lambda name, shape: cut[name],
    )


class Recorded:
    """input_fns over the digits; `batches` gets [rows, ids, masks] of every batch that the trainer took."""

    def __init__(self, data_dir, **options):
        self.data_dir, self.options, self.batches = data_dir, options, []

    def __call__(self, ctx):
        from pipeline.datasets import eval_dataset, train_dataset
        from pipeline.ops import DecodeJpeg, RandomShift

        decode = DecodeJpeg(RAW, into=IMAGE, shape=(32, 32, 1))
        common = {"global_batch": ctx.global_batch_size, "hosts": ctx.hosts, "keys": (IMAGE, LABEL)}
        common |= {"stall_seconds": ctx.stall_seconds} | self.options
        if ctx.mode == "train":
            ops = [decode, RandomShift(IMAGE, pixels=2)]
            source = train_dataset(self.data_dir, "train", ops=ops, seed=ctx.seed, **common)
        else:
            source = eval_dataset(self.data_dir, "validation", ops=[decode], **common)
        rows = [row for part in ctx.hosts.rows for row in part]
        self.source, batches = source, source.batches

        def recording(position=None):
            for batch in batches(position):
                self.batches.append([rows, batch["_index"].tolist(), batch["_mask"].tolist()])
                yield batch

        source.batches = recording
        return source
