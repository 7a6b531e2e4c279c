"""Small tasks and inputs for the trainer's tests, on four virtual CPU devices. No tensorflow here."""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from pipeline.errors import FingerprintError
from trainer.config import TrainerConfig
from trainer.inputs import InputContext, InputInfo
from trainer.task import Task, Variables

jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture(scope="session", autouse=True)
def _programs(kept_programs):
    pass


@dataclass
class ArrayInput:
    """The Input protocol over arrays in memory; a position is the number of batches before it.

    Keeps the `_index` of every batch that it gave in `given`."""

    arrays: Mapping[str, np.ndarray]
    ctx: InputContext
    pad: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.given: list[np.ndarray] = []
        count, batch = len(next(iter(self.arrays.values()))), self.ctx.global_batch_size
        self.crcs = np.array([zlib.crc32(b"%d" % i) for i in range(count)], np.uint32)
        trains = self.ctx.mode == "train"
        self.info = InputInfo(
            {},
            f"array{count}",
            start=0,
            num_records=count,
            steps_per_epoch=count // batch if trains else -(-count // batch),
            expected_crc=None if trains else int(self.crcs.sum(dtype=np.uint64)) % 2**32,
            endless=trains,
        )
        self.info = replace(self.info, spec=self._batch(0))

    def _ids(self, step: int) -> np.ndarray:
        batch = self.ctx.global_batch_size
        if self.ctx.mode == "train":
            epoch, step = divmod(step, self.info.steps_per_epoch)
            order = np.random.default_rng((self.ctx.seed, epoch)).permutation(self.info.num_records)
            return order[step * batch : (step + 1) * batch]
        ids = np.arange(step * batch, (step + 1) * batch)
        return np.where(ids < self.info.num_records, ids, -1)

    def _batch(self, step: int) -> dict[str, np.ndarray]:
        ids = np.concatenate([self._ids(step)[rows] for rows in map(_slice, self.ctx.hosts.rows)])
        real = ids >= 0
        batch = {}
        for key, array in self.arrays.items():
            batch[key] = array[ids]
            batch[key][~real] = self.pad.get(key, 0)
        crc = np.where(real, self.crcs[ids], 0).astype(np.uint32)
        if self.ctx.mode == "train":
            batch["_seed"] = np.stack([ids, np.full_like(ids, step)], axis=1).astype(np.uint32)
        mask = real.astype(np.float32)
        return batch | {"_mask": mask, "_index": ids.astype(np.int32), "_crc": crc}

    def batches(self, position: int) -> Iterator[dict[str, np.ndarray]]:
        while self.ctx.mode == "train" or position < self.info.steps_per_epoch:
            batch = self._batch(position)
            self.given.append(batch["_index"])
            yield batch
            position += 1

    def advance(self, position: int, n: int) -> int:
        return position + n

    def state(self, position: int) -> dict[str, Any]:
        return {"fingerprint": self.info.fingerprint, "seed": self.ctx.seed, "position": position}

    def restore(self, state: dict[str, Any]) -> int:
        fingerprint, seed = self.info.fingerprint, self.ctx.seed
        if (state["fingerprint"], state["seed"]) != (fingerprint, seed):
            raise FingerprintError(f"saved from {state}, this is {fingerprint}, seed {seed}")
        return state["position"]


def _slice(rows: range) -> slice:
    return slice(rows.start, rows.stop)


@pytest.fixture(scope="session")
def make_input() -> type[ArrayInput]:
    return ArrayInput


@pytest.fixture(scope="session")
def vectors() -> dict[str, np.ndarray]:
    """100 records of 8 numbers in three classes."""
    rng = np.random.default_rng(0)
    return {
        "x": rng.standard_normal((100, 8)).astype(np.float32),
        "label": rng.integers(0, 3, 100).astype(np.int32),
    }


@pytest.fixture(scope="session")
def vector_input(vectors, make_input):
    return lambda ctx: make_input(vectors, ctx)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels)


def accuracy(logits: jax.Array, batch: Mapping[str, Any]) -> jax.Array:
    return jnp.argmax(logits, -1) == batch["label"]


def noise(key: jax.Array, count: int) -> jax.Array:
    """Numbers in [-1, 1] that follow from the key; jax.random's cost a third more CPU in every program."""
    seed = jax.random.key_data(key)[1] % 4096
    return jnp.sin(seed.astype(jnp.float32) + 7.0 * jnp.arange(1, count + 1))


@pytest.fixture(scope="session")
def dense_task() -> Task:
    """Two dense layers with noise on the input from the step's key, so that a wrong key shows."""

    def init(rng: jax.Array, spec: Any) -> Variables:
        width = spec["x"].shape[1]
        numbers = noise(rng, (width + 3) * 16) * 0.5
        first, last = jnp.split(numbers, [width * 16])
        return Variables({"a": first.reshape(width, 16), "b": last.reshape(16, 3)})

    def loss_fn(variables: Variables, batch: Mapping[str, Any], rng: jax.Array, train: bool) -> Any:
        x = batch["x"]
        if train:
            x = x + 0.1 * noise(rng, x.shape[1])
        logits = jnp.tanh(x @ variables.params["a"]) @ variables.params["b"]
        return cross_entropy(logits, batch["label"]), variables, logits

    return Task(init, loss_fn, optax.adam(1e-2), {"accuracy": accuracy})


@pytest.fixture
def config(tmp_path: Path):
    """Makes a TrainerConfig for a run in `name` under tmp_path."""

    def make(name: str = "run", **settings: Any) -> TrainerConfig:
        return TrainerConfig(workdir=str(tmp_path / name), **{"global_batch_size": 16} | settings)

    return make
