"""Records per second that a process and its worker processes make on more cores than this machine has.

    python -m benchmarks.bench_cores [--cores 1 2 4 8 16 32] [--step MS] [--seconds 5] [WORK ...]

What takes most of a core sleeps instead (see emulated); the rest of Python and NumPy runs on the machine's real cores.
A cell has records/s; their share of cores x one core's rate, which is what the CPU time and the sleeps of one thread add
up to; and the real cores that were busy, with this process and its workers. Where these are nearly all that the machine
has, the cell shows their limit and not that of the emulated cores. --step: the batches go through Trainer.train, with
steps that take MS milliseconds more; the cell also has the share of the time that the Trainer waited for its input.
Each measurement is a process of its own."""

import argparse
import json
import os
import sys
import tempfile
import time
from typing import Any, NamedTuple

import psutil

from benchmarks.bench_same_work import BATCH, KINDS, RECORDS, cpu_seconds, ops_of, write
from benchmarks.emulated import Lengths, emulate, slept_seconds
from benchmarks.harness import load, module, run

WARM_SECONDS = 4.0  # threads make the first batches, then workers start
# what sleeps: photographs as in benchmarks/results, the others as one thread took here, 2026-11-27
WORKS = {
    "photographs, bilinear": Lengths(decode=0.0011, resize=0.00018),
    "photographs, bicubic": Lengths(decode=0.0011, resize=0.00014),
    "JPEG of 32 pixels, decoded": Lengths(decode=0.0000116),
    "256 tokens": Lengths(parse=0.0000078),
}


def ways(cores: int) -> dict[str, Any]:
    """What is given as `workers`."""
    return {"threads": 0, "a worker per 8 cores": -(-cores // 8), "auto": "auto"}


class Measured(NamedTuple):
    """rate: records per second. one_core: what the rate would be if one core did the work of this process, which is all of
    it with threads. busy: real cores. input_wait: a share of the time."""

    rate: float
    one_core: float
    busy: float
    workers: int
    input_wait: float


class Meter:
    """Is told how many records were made, and for how many seconds the Trainer waited for them, whenever there are more.
    Prints a Measured as JSON and ends the process when it has seen enough."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._begin = time.perf_counter() + WARM_SECONDS
        self._before: tuple[float, ...] = ()

    def __call__(self, records: int, waited: float = 0.0) -> None:
        now = (time.perf_counter(), records, waited, cpu_seconds(), slept_seconds())
        if not self._before:
            self._before = now if now[0] > self._begin else ()
        elif now[0] > self._before[0] + self._seconds:
            wall, made, wait, cpu, slept = (a - b for a, b in zip(now, self._before, strict=True))
            rates = made / wall, made / (cpu + slept)
            measured = Measured(*rates, cpu / wall, len(psutil.Process().children()), wait / wall)
            print(json.dumps(measured), flush=True)
            os._exit(0)  # workers end with it


def measure(args: argparse.Namespace) -> None:
    """Of one cell, in a process of its own."""
    from pipeline.datasets import train_dataset
    from pipeline.inputs import dataset_input

    name, cores, kind = args.works[0], args.cores[0], KINDS[args.works[0]]
    emulate(WORKS[name], cores)
    choose = dataset_input.choose_workers
    dataset_input.choose_workers = lambda cores, rows, _, cost: choose(cores, rows, RECORDS, cost)
    options = {"ops": ops_of(kind), "keys": kind.keys, "epochs": "span"}
    options["workers"] = json.loads(args.measure[1])
    source = train_dataset(args.measure[0], "train", global_batch=BATCH, **options)
    meter = Meter(args.seconds)
    if args.step:
        train(source, args.step / 1000, meter)
    for number, _ in enumerate(source.batches(), 1):
        meter(number * BATCH)


def train(source: Any, step_seconds: float, meter: Meter) -> None:
    """Trainer.train with the default settings and one parameter. The main thread sleeps for the steps of each dispatch,
    as it would wait for a device; the feeder goes on meanwhile."""
    import jax
    import jax.numpy as jnp
    import optax

    from trainer.callbacks import Callback, LoopEnd
    from trainer.config import TrainerConfig
    from trainer.task import Task, Variables
    from trainer.trainer import Trainer

    class Metering(Callback):
        step, waited = 0, 0.0

        def on_loop_end(self, end: LoopEnd) -> None:
            assert end.speed
            steps, self.step = end.step - self.step, end.step
            self.waited += end.speed.input_wait * steps / end.speed.steps_per_second
            meter(BATCH * self.step, self.waited)
            time.sleep(steps * step_seconds)

    def loss_fn(variables: Variables, batch: Any, rng: jax.Array, train: bool) -> Any:
        return variables.params["w"] * batch["_mask"], variables, None

    task = Task(lambda key, spec: Variables({"w": jnp.ones(())}), loss_fn, optax.sgd(0.1))
    with tempfile.TemporaryDirectory() as workdir:
        config = TrainerConfig(workdir=workdir, global_batch_size=BATCH, log_every=1)
        Trainer(task, config, callbacks=[Metering()]).train(lambda _: source, steps=10**6)


def main() -> None:
    """Prints a row per work and number of cores."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"of: {', '.join(WORKS)}")
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--step", type=float, metavar="MS", default=0.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--measure", nargs=2, metavar=("DIR", "WORKERS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args)
    limit = f", steps for {1000 * BATCH / args.step:,.0f}/s" if args.step else ""
    print(f"{load()}, {os.cpu_count()} real cores, batches of {BATCH}{limit}\n")
    print(f"| records/s | one core | cores | {' | '.join(ways(1))} |\n|{' --- |' * 6}")
    for name in args.works or WORKS:
        with tempfile.TemporaryDirectory() as data:
            write(KINDS[name], data)
            one_core = measured(name, data, 1, 0, 0.0, args.seconds).one_core
            for cores in args.cores:
                cells = [
                    cell(
                        measured(name, data, cores, workers, args.step, args.seconds),
                        cores * one_core,
                    )
                    for workers in ways(cores).values()
                ]
                print(f"| {name} | {one_core:,.0f} | {cores} | {' | '.join(cells)} |", flush=True)


def measured(
    name: str, data: str, cores: int, workers: Any, step: float, seconds: float
) -> Measured:
    command = [sys.executable, *module("bench_cores"), name, f"--cores={cores}", f"--step={step}"]
    command += [f"--seconds={seconds}", "--measure", data, json.dumps(workers)]
    printed, _ = run(command)
    return Measured(*json.loads(printed.splitlines()[-1]))


def cell(found: Measured, most: float) -> str:
    """The text of a cell. most: cores x one core's rate."""
    waited = f", {found.input_wait:.0%} input wait" if found.input_wait else ""
    workers = f"{found.workers} workers, " if found.workers else ""
    return f"{found.rate:,.0f} ({found.rate / most:.2f}; {workers}{found.busy:.1f} busy{waited})"


if __name__ == "__main__":
    main()
