"""The loops that bench_trainer compares, each in this process: ours, those of others, and the limit.

A peer's is its own loop without what is not the loop: its step with what it measures in a step, its way of placing
batches, what it does at every step and at a look, in our words. All have one device, the same model and optimizer,
batches from memory, and a look every k steps. Every loop calls mark(steps) after a look."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.trainer_turns import Marks
from benchmarks.trainer_work import Work, losses, new_params, update
from trainer.callbacks import Callback, LoopEnd
from trainer.config import TrainerConfig
from trainer.inputs import InputInfo
from trainer.step.steps import train_step
from trainer.task import Task, TrainState, Variables
from trainer.trainer import Trainer

__all__ = ["CONTENDERS", "Train"]

Train = Callable[[Work, Marks, Path, int], None]  # work, mark, a directory, the most steps


class MemoryInput:
    """The Input protocol over a work's batches."""

    def __init__(self, work: Work) -> None:
        self._mask = {"_mask": np.ones(work.batch, np.float32)}
        self._batches = work.batches()
        self.info = InputInfo(next(self._batches) | self._mask, "memory", start=0)

    def batches(self, position: int) -> Iterator[dict[str, np.ndarray]]:
        return (batch | self._mask for batch in self._batches)

    def advance(self, position: int, n_batches: int) -> int:
        return position + n_batches

    def state(self, position: int) -> dict[str, Any]:
        return {"position": position}

    def restore(self, state: dict[str, Any]) -> int:
        return state["position"]


class _Marking(Callback):
    def __init__(self, mark: Marks) -> None:
        self._mark = mark

    def on_loop_end(self, end: LoopEnd) -> None:
        self._mark(end.step)


def _task(work: Work) -> Task:
    return Task(
        init=lambda key, spec: Variables(new_params(work, key)),
        loss_fn=lambda variables, batch, rng, train: (
            losses(work, variables.params, batch),
            variables,
            None,
        ),
        optimizer=work.made_optimizer(),
    )


def ours(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """Trainer.train with all that it does: checks, an event file and metrics.jsonl of every step, log lines."""
    config = TrainerConfig(
        workdir=str(directory),
        global_batch_size=work.batch,
        iterations_per_loop=work.k,
        log_every=work.k,
        checkpoint_every_steps=None,
    )
    Trainer(_task(work), config, callbacks=[_Marking(mark)]).train(
        lambda context: MemoryInput(work), steps=steps
    )


def _fresh(work: Work) -> tuple[Any, Any]:
    params = jax.jit(lambda key: new_params(work, key))(jax.random.key(0))
    return params, work.made_optimizer().init(params)


def bare_scan(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The limit: the plain step, k batches that stay on the device, the losses read one dispatch late."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        state, loss, _, _ = update(work, state, batch)
        return state, loss

    _scan(work, mark, step, _fresh(work))


def bare_scan_of_ours(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The same with our step, which also has the gradients' norm and a check for non-finite values."""
    params, optimizer = _fresh(work)
    key = jax.random.key_data(jax.random.key(0))
    state = TrainState(jnp.int32(0), Variables(params), optimizer, key, None)
    _scan(work, mark, train_step(_task(work)), state)


def _scan(work: Work, mark: Marks, step: Any, state: Any) -> None:
    masked = (
        batch | {"_mask": np.ones(work.batch, np.float32)}
        for batch in itertools.islice(work.batches(), work.k)
    )
    stacked = jax.device_put(jax.tree.map(lambda *rows: np.stack(rows), *masked))
    scan = jax.jit(lambda state: jax.lax.scan(step, state, stacked), donate_argnums=0)
    before = None
    for dispatch in itertools.count():
        state, out = scan(state)
        if before is not None:
            jax.device_get(before)
            mark(dispatch * work.k)
        before = out


def _ahead(batches: Iterator[Any]) -> Iterator[Any]:
    """One batch on the device ahead; no thread."""
    placed = jax.device_put(next(batches))
    for batch in batches:
        ahead = jax.device_put(batch)
        yield placed
        placed = ahead


def big_vision(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """train.py: its four measurements a step, fetched at a look and written by a pool of one thread; its chrono."""

    @jax.jit
    def norm(tree: Any) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(tree)))

    def update_fn(state: Any, rng: jax.Array, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        jax.random.split(jax.random.fold_in(rng, state[0]))
        new, loss, grads, updates = update(work, state[1:], batch)
        norms = {"l2_grads": norm(grads), "l2_params": norm(new[0]), "l2_updates": norm(updates)}
        return (state[0] + 1, *new), {"training_loss": loss} | norms

    step_fn = jax.jit(update_fn, donate_argnums=0)
    state, rng = (jnp.int32(0), *_fresh(work)), jax.random.key(1)
    pool, ticked = ThreadPoolExecutor(1), time.monotonic()
    for step, batch in zip(range(1, steps + 1), _ahead(work.batches()), strict=False):
        with jax.profiler.StepTraceAnnotation("train_step", step_num=step):
            state, measurements = step_fn(state, rng, batch)
        if step % work.k == 0:
            found = {name: float(value) for name, value in jax.device_get(measurements).items()}
            now = time.monotonic()
            found |= {"img/sec/core": work.batch * work.k / (now - ticked), "uptime": now}
            ticked = now
            if not np.isfinite(found["training_loss"]):
                raise RuntimeError("the loss became nan or inf")
            pool.submit(_append, directory, {"step": step} | found)
            mark(step)


def _append(directory: Path, row: dict[str, float]) -> None:
    with (directory / "metrics.txt").open("a") as file:
        file.write(json.dumps(row) + "\n")


CONTENDERS: dict[str, Train] = {
    "ours, Trainer.train": ours,
    "bare scan, batches placed": bare_scan,
    "bare scan of our step": bare_scan_of_ours,
    "big_vision": big_vision,
}
