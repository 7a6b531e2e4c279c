"""Training loops: ours against big_vision's, Keras 3 on JAX, and a bare scan, which is the limit.

    python -m benchmarks.bench_trainer [--rounds 17] [--peer_python ...] [--only ...]

Loops of the same model, optimizer and batches take turns in one process (Keras in its own), a turn each per round; what
compiles does so before. Speeds are medians of the turns; ratios are those within rounds, the median and the quartiles.
CPU time is that of all threads of the process. Keras is left out unless --peer_python has it: pip install keras jax
optax."""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from benchmarks.harness import ROOT, has_module, load, module, spread
from benchmarks.trainer_contenders import CONTENDERS
from benchmarks.trainer_turns import WARM, Loop, Turn
from benchmarks.trainer_work import WORKS, Work

OURS, LIMIT, KERAS = "ours, Trainer.train", "bare scan", "Keras 3"
Rounds = list[dict[str, Turn]]


class Turning(Protocol):
    """A Loop, here or elsewhere."""

    def turn(self, marks: int) -> Turn: ...
    def close(self) -> None: ...


class KerasLoop:
    """The Loop of another process."""

    def __init__(self, python: str, name: str, steps: int) -> None:
        command = [python, "-W", "ignore", *module("trainer_keras"), name, str(steps)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def turn(self, marks: int) -> Turn:
        assert self._process.stdin
        assert self._process.stdout
        print(marks, file=self._process.stdin, flush=True)
        return Turn(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def loops(
    name: str, work: Work, directory: Path, options: argparse.Namespace
) -> Iterator[tuple[str, Turning]]:
    """All that train one of the works."""
    steps = work.k * (WARM + work.looks + 2) * (options.rounds + 3)  # more than all turns take
    for number, (contender, train) in enumerate(CONTENDERS.items()):
        if contender.startswith(LIMIT) and work.is_image:
            continue  # a scan over convolutions is several times slower on a CPU, so it is no limit
        place = directory / f"{name} {number}"
        place.mkdir()
        yield (
            contender,
            Loop(lambda mark, train=train, place=place: train(work, mark, place, steps)),
        )
    if has_module(options.peer_python, "keras"):
        yield f"{KERAS}, steps_per_execution={work.k}", KerasLoop(options.peer_python, name, steps)


def rounds(turning: dict[str, Turning], looks: int, count: int) -> Rounds:
    """The turns of all, round by round, each round from another one on."""
    measured = []
    try:
        for loop in turning.values():
            loop.turn(1)  # compiles
        names = list(turning)
        for number in range(count):
            first = number % len(names)
            turns = {name: turning[name].turn(looks) for name in names[first:] + names[:first]}
            measured.append({name: turns[name] for name in names})
    finally:
        for loop in turning.values():
            loop.close()
    return measured


def each(turn: Turn) -> tuple[float, float]:
    """Microseconds per step, of the clock and of the CPU."""
    return turn.seconds / turn.steps * 1e6, turn.cpu_seconds / turn.steps * 1e6


def table(title: str, measured: Rounds) -> None:
    """One line per loop."""
    print(
        f"\n| {title} | steps/s | us a step | CPU us a step | time over ours | CPU time over ours |\n|{' --- |' * 6}"
    )
    for name in measured[0]:
        wall, cpu = (statistics.median(each(turns[name])[i] for turns in measured) for i in (0, 1))
        over = [
            spread([each(turns[name])[i] / each(turns[OURS])[i] for turns in measured])
            for i in (0, 1)
        ]
        print(
            f"| {name} | {1e6 / wall:,.0f} | {wall:,.1f} | {cpu:,.1f} | {' | '.join(over)} |",
            flush=True,
        )


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=17)
    parser.add_argument("--peer_python", default=sys.executable, help="the Python that has Keras")
    parser.add_argument("--only", nargs="*", default=[*WORKS], help="of: %(default)s")
    options = parser.parse_args()
    print(f"{options.rounds} rounds, {os.cpu_count()} cores, {load()}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for name in options.only:
            turning = dict(loops(name, WORKS[name], Path(scratch), options))
            table(name, rounds(turning, WORKS[name].looks, options.rounds))
    print(load())


if __name__ == "__main__":
    main()
