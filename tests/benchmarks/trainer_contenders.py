"""The loops that bench_trainer compares, each in this process: ours, those of others, and the limit.

A peer's is its own loop without what is not the loop: its step with what it measures in a step, its way of placing
batches, what it does at every step and at a look, in our words. All have one device, the same model and optimizer,
batches from memory, and a look every k steps. Every loop calls mark(steps) after a look."""

import collections
import itertools
import json
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from trainer_turns import Marks
from trainer_work import Work, losses, new_params, update

from trainer.callbacks import Callback, LoopEnd
from trainer.config import OnNan, TrainerConfig
from trainer.inputs import InputContext, InputInfo
from trainer.job import Job
from trainer.loop.dispatching import DispatchResult, Steps, run
from trainer.mesh import Placement
from trainer.modes.session import open_session
from trainer.state import TrainState
from trainer.step_functions import train_step
from trainer.task import Task, Variables
from trainer.trainer import Trainer

__all__ = ["CONTENDERS", "MemoryInput", "Train", "through_trainer"]

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
        loss_fn=lambda variables, batch, rng, train: (losses(work, variables.params, batch), variables, None),
        optimizer=work.made_optimizer(),
    )


def _config(work: Work, directory: Path, on_nan: OnNan = "raise") -> TrainerConfig:
    return TrainerConfig(
        workdir=str(directory),
        global_batch_size=work.batch,
        iterations_per_loop=work.k,
        log_every=work.k,
        checkpoint_every_steps=None,
        on_nan=on_nan,
    )


def through_trainer(
    work: Work,
    mark: Marks,
    directory: Path,
    steps: int,
    input_fn: Callable[[InputContext], Any],
    on_nan: OnNan = "raise",
) -> None:
    """Trainer.train with all that it does: checks, an event file and metrics.jsonl of every step, log lines."""
    Trainer(_task(work), _config(work, directory, on_nan), callbacks=[_Marking(mark)]).train(input_fn, steps=steps)


def ours(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """Trainer.train."""
    through_trainer(work, mark, directory, steps, lambda context: MemoryInput(work))


def ours_unchecked(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The same with on_nan=ignore: no peer looks at more than the loss, and most not at that."""
    through_trainer(work, mark, directory, steps, lambda context: MemoryInput(work), "ignore")


def our_loop(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """What is inside of it: the same step, fed in the same way; nothing is reported, nothing can pause it."""
    job = Job(_task(work), _config(work, directory), Placement.of())
    opened = job.open("train", lambda context: MemoryInput(work))
    state = job.fresh_state(opened)
    program = job.program(train_step(job.task), state, opened, work.k)

    def look(found: DispatchResult) -> None:
        mark(found.start + found.length)

    planned = Steps.planned(0, steps, work.k)
    with open_session(job) as session, session.feeding(program, opened, 0, planned) as feeder:
        run(state, 0, feeder, program, look)


def _fresh(work: Work) -> tuple[Any, Any]:
    params = jax.jit(lambda key: new_params(work, key))(jax.random.key(0))
    return params, work.made_optimizer().init(params)


def _scan(step: Callable[[Any, Any], Any], state: Any, batches: Iterable[Any], work: Work, mark: Marks) -> None:
    kept = [next(batch) for batch in itertools.repeat(iter(batches), work.k)]
    stacked = jax.device_put(jax.tree.map(lambda *rows: np.stack(rows), *kept))
    scan = jax.jit(lambda state, batches: jax.lax.scan(step, state, batches), donate_argnums=0)
    before = None
    for dispatch in itertools.count():
        state, out = scan(state, stacked)
        if before is not None:
            jax.device_get(before)
            mark(dispatch * work.k)
        before = out


def bare_scan(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The limit: the plain step, k batches that are on the device for ever, the losses read one dispatch late."""

    def step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        state, loss, _, _ = update(work, state, batch)
        return state, loss

    _scan(step, _fresh(work), work.batches(), work, mark)


def bare_scan_of_our_step(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The same around our step: mask, key, norm of the gradient, the look for what is not finite."""
    job = Job(_task(work), _config(work, directory), Placement.of())
    opened = job.open("train", lambda context: MemoryInput(work))
    state: TrainState = job.fresh_state(opened)
    _scan(train_step(job.task), state, opened.source.batches(0), work, mark)


def _ahead(batches: Iterator[Any], n: int) -> Iterator[Any]:
    """So many batches on the device ahead; no thread. big_vision and flax alike."""
    placed: collections.deque[Any] = collections.deque()
    while True:
        while len(placed) <= n:
            placed.append(jax.device_put(next(batches)))
        yield placed.popleft()


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
    for step, batch in zip(range(1, steps + 1), _ahead(work.batches(), 1), strict=False):
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


def flax_imagenet(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The ImageNet example: the metrics of every step are kept on the device; a look fetches, stacks and means them.

    jit in place of its pmap, which costs more."""

    def train_step(state: Any, batch: Any) -> tuple[Any, dict[str, jax.Array]]:
        new, loss, _, _ = update(work, state[1:], batch)
        return (state[0] + 1, *new), {"loss": loss, "learning_rate": 1e-3 * jnp.ones(())}

    p_train_step = jax.jit(train_step, donate_argnums=0)
    state, train_metrics, began = (jnp.int32(0), *_fresh(work)), [], time.time()
    for step, batch in zip(range(steps), _ahead(work.batches(), 2), strict=False):
        state, metrics = p_train_step(state, batch)
        train_metrics.append(metrics)
        if (step + 1) % work.k == 0:
            stacked = jax.tree.map(lambda *values: np.stack(values), *jax.device_get(train_metrics))
            summary = {f"train_{name}": float(values.mean()) for name, values in stacked.items()}
            summary["steps_per_second"] = work.k / (time.time() - began)
            _append(directory, {"step": step + 1} | summary)
            train_metrics, began = [], time.time()
            mark(step + 1)


def reads_every_loss(work: Work, mark: Marks, directory: Path, steps: int) -> None:
    """The loop of a first tutorial."""

    def train_step(state: Any, batch: Any) -> tuple[Any, jax.Array]:
        new, loss, _, _ = update(work, state, batch)
        return new, loss

    step_fn, state, history = jax.jit(train_step, donate_argnums=0), _fresh(work), []
    for step, batch in zip(range(1, steps + 1), work.batches(), strict=False):
        state, loss = step_fn(state, batch)
        history.append(float(loss))
        if step % work.k == 0:
            mark(step)


CONTENDERS: dict[str, Train] = {
    "ours, Trainer.train": ours,
    "ours, on_nan=ignore": ours_unchecked,
    "ours, the loop inside": our_loop,
    "bare scan, batches placed": bare_scan,
    "bare scan of our step": bare_scan_of_our_step,
    "big_vision": big_vision,
    "flax's ImageNet example": flax_imagenet,
    "float(loss) each step": reads_every_loss,
}
