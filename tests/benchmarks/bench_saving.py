"""How long a save holds the loop up: infeed's, with its checksums and its check for non-finite numbers, and Orbax's.

    python -m tests.benchmarks.bench_saving [--gigabytes 0.6] [--turns 9] [--json FILE]

Both save the same state of 30 arrays asynchronously, in turns, on the default device, each into a directory of its own.
A turn makes a new state as a training step would, which reuses the memory of the old one, waits until it is there, and
saves. `held` is the time until the save returns. `steps` is the time from there to the end of a number of steps that
takes about a second without a save, so that it shows what the work in the background costs. Prints medians with
quartiles, and those of ours over Orbax's in the same turn."""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from tests.benchmarks.harness import spread
from trainer.checkpointing.arrays import Saved
from trainer.checkpointing.manager import CheckpointManager
from trainer.config import TrainerConfig
from trainer.mesh import Placement
from trainer.modes.train_monitor import FiniteCheck
from trainer.state import TrainState
from trainer.task import Variables

ARRAYS, WIDTH = 30, 2000


def made(gigabytes: float) -> TrainState:
    """A state of 30 arrays of random numbers."""
    rows = round(gigabytes * 1e9 / ARRAYS / WIDTH / 4)
    keys = jax.random.split(jax.random.key(0), ARRAYS)
    arrays = {f"w{i:02d}": jax.random.normal(key, (rows, WIDTH)) for i, key in enumerate(keys)}
    return TrainState(jnp.int32(0), Variables(arrays), (), jax.random.key_data(jax.random.key(1)))


@partial(jax.jit, donate_argnums=0)
def step(state: TrainState) -> TrainState:
    """The next state."""
    params = jax.tree.map(lambda leaf: leaf * 0.999 + 1e-3, state.variables.params)
    return state._replace(step=state.step + 1, variables=Variables(params))


def savers(directory: Path, state: TrainState) -> dict[str, tuple[Callable[[int, TrainState], Any], Callable[[], Any]]]:
    """Name -> how to save, how to wait until that is written."""
    options = ocp.CheckpointManagerOptions(max_to_keep=1, create=True)
    orbax = ocp.CheckpointManager(directory / "orbax", options=options)
    ours = CheckpointManager(TrainerConfig(workdir=str(directory / "ours"), keep_max=1, global_batch_size=8))
    check = FiniteCheck("raise", state, Placement.of(jax.devices()[:1]))

    def save_ours(number: int, state: TrainState) -> None:
        ours.save(Saved(number, state, {}, {}), partial(check.for_save, number, state))

    def save_orbax(number: int, state: TrainState) -> None:
        orbax.save(number, args=ocp.args.StandardSave(state))  # pyright: ignore[reportCallIssue]

    return {"Orbax": (save_orbax, orbax.wait_until_finished), "infeed": (save_ours, lambda: ours.settle(wait=True))}


def turn(
    save: Callable[[int, TrainState], Any] | None, number: int, state: TrainState, steps: int
) -> tuple[float, float, TrainState]:
    """Seconds that the save takes, and those of the steps after it."""
    state = jax.block_until_ready(step(state))
    began = time.perf_counter()
    if save:
        save(number, state)
    held = time.perf_counter()
    for _ in range(steps):
        state = step(state)
    jax.block_until_ready(state)
    return held - began, time.perf_counter() - held, state


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=0.6)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    state = made(options.gigabytes)
    *_, state = turn(None, 0, state, 3)
    one = turn(None, 0, state, 5)[1] / 5
    state, steps = made(options.gigabytes), max(3, round(1 / one))
    found: dict[str, list[tuple[float, float]]] = {"no save": [], "Orbax": [], "infeed": []}
    with tempfile.TemporaryDirectory() as directory:
        ways = savers(Path(directory), state)
        for number in range(options.turns + 1):
            for name in sorted(found, reverse=number % 2 == 1):  # a save is slower while the disk writes the one before
                save, wait = ways.get(name, (None, lambda: None))
                held, after, state = turn(save, number + 1, state, steps)
                wait()
                if number:  # the first compiles, and makes directories
                    found[name].append((held, after))
    kind = jax.devices()[0].device_kind
    print(f"{kind}, {options.gigabytes} GB, {options.turns} turns, {steps} steps after each save\n")
    print("| | held, s | steps after it, s |\n| --- | --- | --- |")
    for name, pairs in found.items():
        print(f"| {name} | {' | '.join(spread(values) for values in zip(*pairs, strict=True))} |")
    ratios = [
        [ours[part] / theirs[part] for ours, theirs in zip(found["infeed"], found["Orbax"], strict=True)]
        for part in (0, 1)
    ]
    print(f"| infeed / Orbax | {' | '.join(map(spread, ratios))} |")
    if options.json:
        options.json.write_text(json.dumps(found | {"device": kind}) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
