"""What test_meshes.py asks of its processes: trainings of one model that differ in the mesh that it is laid over."""

import hashlib
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
from host_task import LABEL, NumberedInput, settings
from jax import lax

from trainer.callbacks import Callback
from trainer.mesh import FLOOR
from trainer.task import Task, Variables
from trainer.trainer import Trainer

RECORDS, WIDTH, HIDDEN, CLASSES = 40, 128, 256, 10
OPTIMIZERS = {"sgd": optax.sgd(0.1), "adam": optax.adam(1e-3), "adafactor": optax.adafactor(1e-3)}


class Losses(Callback):
    """Those of every step."""

    def __init__(self):
        self.of_steps = []

    def on_loop_end(self, end):
        self.of_steps += np.ravel(end.scalars["loss"]).tolist()


def layered_task(optimizer):
    """Two layers in a scan, whose kernels are large enough for fsdp, between two that are not."""

    def init(rng, spec):
        def numbers(*shape):
            return jnp.sin(7.0 * jnp.arange(1, np.prod(shape) + 1)).reshape(shape) / np.sqrt(shape[-2])

        layers = {"up": numbers(2, WIDTH, HIDDEN), "down": numbers(2, HIDDEN, WIDTH)}
        return Variables({"into": numbers(64, WIDTH), "layers": layers, "out": numbers(WIDTH, CLASSES)})

    def logits_of(params, batch):
        def layer(x, kernels):
            return x + jnp.tanh(x @ kernels["up"]) @ kernels["down"], None

        pixels = jnp.sin(batch["image"].reshape(-1, 64) * jnp.arange(1, 65) / 10)
        x, _ = lax.scan(layer, pixels @ params["into"], params["layers"])
        return x @ params["out"]

    def loss_fn(variables, batch, rng, train):
        logits = logits_of(variables.params, batch)
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[LABEL] - 1), variables, logits

    def right(logits, batch):
        return logits.argmax(-1) == batch[LABEL] - 1

    def predict(variables, batch):
        return {"logits": logits_of(variables.params, batch)}

    made = OPTIMIZERS[optimizer]
    return Task(init, loss_fn, made, {"right": right}, predict_fn=predict, independent_rows=optimizer == "adam")


def meshes(order):
    """Trains, in each run of `order.runs`, {name: (optimizer, devices, steps, evaluates, settings)}.

    Reports losses, a digest of the state's bits, and the bytes on the first device and in total of large parameters,
    their statistics and their averages; of a run that `evaluates` also its metrics, and what its export differs by."""
    for name, (optimizer, devices, steps, evaluates, others) in order.runs.items():
        losses, own = Losses(), {name: value for name, value in others.items() if name != "workdir"}
        config = replace(settings(order, iterations_per_loop=2, **own), workdir=others["workdir"])
        trainer = Trainer(layered_task(optimizer), config, jax.devices()[:devices], [losses])

        def input_fn(ctx):
            return NumberedInput(ctx, RECORDS)

        trained = trainer.train(input_fn, max_steps=steps)
        state = trained.state
        parts = {"params": state.variables.params, "optimizer": state.optimizer, "ema": state.ema}
        report = {"start": trained.start_step, "losses": losses.of_steps}
        report["bytes"] = {part: sizes(arrays) for part, arrays in parts.items()}
        held = [shard.data for leaf in jax.tree.leaves(state) for shard in leaf.addressable_shards]
        report["bits"] = hashlib.sha256(b"".join(np.asarray(data).tobytes() for data in held)).hexdigest()
        if evaluates:
            result = trainer.evaluate(input_fn)
            report |= {"metrics": result.metrics, "proven": result.proven, "records": result.records}
            report["exported"] = trainer.export(f"{config.workdir}/export", input_fn).difference
        yield name, report


def sizes(tree):
    """[bytes on the first device, in total], of the arrays of layers that are not small themselves."""
    arrays = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim > 1 and leaf.shape[0] == 2]
    assert all(leaf.size >= FLOOR or leaf.ndim == 2 for leaf in arrays)
    return [sum(leaf.addressable_shards[0].data.nbytes for leaf in arrays), sum(leaf.nbytes for leaf in arrays)]
