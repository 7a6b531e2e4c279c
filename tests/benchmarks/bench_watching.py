"""What it costs to tell how far the dispatches are: Trainer.train of a tiny MLP, here and in an earlier checkout.

    python tests/benchmarks/bench_watching.py --before CHECKOUT [--pairs 10] [--steps 20000]

Each measurement is a process of its own; its first training compiles and is not counted. CPU time is that of all
threads."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[2]
PROGRAM = """
import json, sys, tempfile, time
import jax, jax.numpy as jnp, numpy as np, optax
from trainer.config import TrainerConfig
from trainer.inputs import InputInfo
from trainer.task import Task, Variables
from trainer.trainer import Trainer

k, steps = map(int, sys.argv[1:])
batch = {"x": np.ones((8, 16), np.float32), "_mask": np.ones(8, np.float32)}


class Input:
    def __init__(self):
        self.info = InputInfo({k: jax.ShapeDtypeStruct(v.shape, v.dtype) for k, v in batch.items()}, "f", start=0)

    def batches(self, position):
        while True:
            yield batch

    def advance(self, position, n):
        return position + n

    def state(self, position):
        return {"at": position}

    def restore(self, state):
        return state["at"]


def init(rng, spec):
    return Variables({"a": jnp.ones((16, 16)), "b": jnp.ones((16,))})


def loss_fn(variables, batch, rng, train):
    y = jnp.tanh(batch["x"] @ variables.params["a"]) @ variables.params["b"]
    return y**2, variables, y


with tempfile.TemporaryDirectory() as work:
    def train(name, steps):
        config = TrainerConfig(
            workdir=f"{work}/{name}", global_batch_size=8, iterations_per_loop=k, checkpoint_every_steps=None,
            checkpoint_every=None, log_every=10**9,
        )
        cpu = time.process_time()
        speed = Trainer(Task(init, loss_fn, optax.sgd(1e-3)), config).train(lambda ctx: Input(), steps=steps).speed
        return 1e6 / speed.steps_per_second, 1e6 * (time.process_time() - cpu) / steps

    train("warm", 10 * k)
    print(json.dumps(train("timed", steps)))
"""


def main() -> None:
    """Prints the medians of the ratios, and their quartiles."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20_000)
    args = parser.parse_args()
    print("| k | us a step before, now | ratio of wall times | of CPU times | before against itself, CPU |")
    print("| --- | --- | --- | --- | --- |")
    for k in (1, 100):
        steps = args.steps * (1 if k == 1 else 5)
        rounds = [[measured(path, k, steps) for path in (args.before, HERE, args.before)] for _ in range(args.pairs)]
        wall, cpu, noise = (
            quartiles([ours[i] / before[i] for before, ours, _ in rounds] if not same else
                      [again[i] / before[i] for before, _, again in rounds])
            for i, same in ((0, False), (1, False), (1, True))
        )  # fmt: skip
        before, now = (statistics.median(each[i][0] for each in rounds) for i in (0, 1))
        print(f"| {k} | {before:.1f}, {now:.1f} | {wall} | {cpu} | {noise} |", flush=True)


def measured(checkout: Path, k: int, steps: int) -> tuple[float, float]:
    """Wall and CPU microseconds of a step."""
    env = os.environ | {"PYTHONPATH": str(checkout), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(k), str(steps)],
        env=env,
        cwd="/",
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout)


def quartiles(values: list[float]) -> str:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.3f} ({low:.3f}, {high:.3f})"


if __name__ == "__main__":
    main()
