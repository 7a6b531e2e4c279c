"""A small training that meets another one in its work directory: python owned_run.py WORKDIR OUT '{"option": ...}'.

Its result, or the error that a command would print, is written to OUT. Options: machine, a name that makes it another
one's; wait_at, a step at which it makes OUT.waiting and goes on when there is OUT.go; no_locks, as on a network disk;
days, by which its clock is wrong; pause, seconds after each dispatch."""

import fcntl
import json
import struct
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tensorboard.compat.proto.event_pb2 import Event

from pipeline.errors import InfeedError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.callbacks import Callback
from trainer.checkpointing import owner
from trainer.checkpointing.contents import read_contents
from trainer.checkpointing.listing import checkpoints_directory, finished_steps
from trainer.config import TrainerConfig
from trainer.hosts.exits import end
from trainer.task import Task, Variables
from trainer.trainer import Trainer

STEPS, EVERY = 60, 20


class Slow(Callback):
    def __init__(self, out, wait_at=STEPS + 1, pause=0.0):
        self._out, self._wait_at, self._pause = out, wait_at, pause

    def on_loop_end(self, end):
        time.sleep(self._pause)
        if end.step >= self._wait_at:
            Path(f"{self._out}.waiting").touch()
            while not Path(f"{self._out}.go").exists():
                time.sleep(0.01)
            self._wait_at = STEPS + 1


def trainer(workdir, callbacks=()):
    """Trains a matrix, without an input of its own."""

    def loss_fn(variables, batch, rng, train):
        error = batch["x"] @ variables.params["w"] - batch["y"]
        return jnp.mean(error**2, axis=-1), variables, error

    task = Task(lambda rng, spec: Variables({"w": jnp.zeros((4, 4))}), loss_fn, optax.adam(0.1))
    config = TrainerConfig(
        workdir=str(workdir),
        global_batch_size=4,
        iterations_per_loop=2,
        checkpoint_every_steps=EVERY,
        log_every=10,
    )
    return Trainer(task, config, jax.devices()[:1], callbacks)


def batches(ctx):
    for step in range(ctx.start_step, STEPS):
        x = np.random.default_rng(step).standard_normal((4, 4)).astype(np.float32)
        yield {"x": x, "y": np.tanh(x)}


def published(workdir):
    """All that a training of this directory has published: lines, points, and the checksums of checkpoints' arrays."""
    storage, directory = open_storage(workdir), join(workdir, "train")
    files = {name: storage.read(join(directory, name)) for name in storage.list(directory)}
    lines = b"".join(
        data for name, data in files.items() if name.startswith("metrics.jsonl")
    ).splitlines()
    points = [
        point
        for name, data in files.items()
        if name.startswith("events.")
        for point in points_of(data)
    ]
    pages = {
        step: read_contents(storage, checkpoints_directory(workdir), step)["arrays"]
        for step in finished_steps(workdir)
    }
    return {
        "lines": [unhurried(json.loads(line)) for line in lines],
        "points": sorted(points),
        "checkpoints": pages,
    }


def unhurried(numbers):
    """Without times and speeds."""
    return {
        name: value
        for name, value in numbers.items()
        if name != "time" and not name.startswith("speed/")
    }


def points_of(data):
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = Event.FromString(data[12 : 12 + length])
        scalars = {
            value.tag: value.simple_value
            for value in event.summary.value
            if value.HasField("simple_value")
        }
        yield from ((event.step, name, value) for name, value in unhurried(scalars).items())
        data = data[16 + length :]


def main(workdir, out, options):
    """The exit code of a command."""
    if "machine" in options:
        owner._machine = lambda: options["machine"]
    if options.get("no_locks"):
        fcntl.lockf = refuse
    if "days" in options:
        true_time = time.time
        time.time = lambda: true_time() + 86400 * options["days"]
    callback = Slow(out, options.get("wait_at", STEPS + 1), options.get("pause", 0.0))
    training = trainer(workdir, [callback])
    open_storage(workdir)  # imports the bucket's client, which takes seconds on a busy machine
    began, error = time.monotonic(), None
    try:
        result = training.train(batches, max_steps=STEPS)
        report = {"start": result.start_step}
    except InfeedError as refused:
        error = refused
        report = {"error": str(refused), "kind": type(refused).__name__}
    Path(f"{out}.part").write_text(json.dumps(report | {"seconds": time.monotonic() - began}))
    Path(f"{out}.part").rename(out)
    return 2 if error else 0


def refuse(*_):
    raise OSError(95, "Operation not supported")


if __name__ == "__main__":
    end(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
