"""Training loops, ours against those of big_vision, flax's ImageNet example, Keras 3 on JAX, and a bare scan.

    python tests/benchmarks/bench_trainer.py [--rounds 17] [--peer_python ...] [--only ...] [--quick]

Loops of the same model, optimizer and batches take turns in one process (Keras in its own), a turn each a round; what
compiles does so before. Speeds are medians of the turns, ratios are those within rounds: the median, with an interval
that holds the true one in 95 of 100 cases from six rounds on. CPU time is that of all threads of the process. Keras
is left out unless --peer_python has it: pip install keras jax optax. Then: what a dispatch costs the host, and
training from the input pipeline. --quick: three short rounds of the tiny model, and the dispatches."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

from bench_reading import imports, ratio
from trainer_contenders import CONTENDERS
from trainer_overhead import dispatches, pipeline_loops, write_images
from trainer_turns import WARM, Loop, Turn
from trainer_work import WORKS, Work

OURS, OF_OURS, LIMIT, KERAS = "ours, Trainer.train", "ours, ", "bare scan", "Keras 3"
DISPATCH, INPUT = "dispatch", "input"
LEAVES, RECORDS, QUICK_LOOKS = (10, 100, 1000), 6400, 2
Rounds = list[dict[str, Turn]]


class Turning(Protocol):
    """A Loop, here or elsewhere."""

    def turn(self, marks: int) -> Turn: ...
    def close(self) -> None: ...


class KerasLoop:
    """The Loop of another process."""

    def __init__(self, python: str, name: str, steps: int) -> None:
        command = [python, "-W", "ignore", str(HERE / "trainer_keras.py"), name, str(steps)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def turn(self, marks: int) -> Turn:
        assert self._process.stdin
        assert self._process.stdout
        print(marks, file=self._process.stdin, flush=True)
        return Turn(*json.loads(self._process.stdout.readline()))

    def close(self) -> None:
        self._process.communicate()


def loops(name: str, directory: Path, options: argparse.Namespace) -> Iterator[tuple[str, Turning]]:
    """All that train one of the works."""
    work, steps = WORKS[name], most_steps(WORKS[name], options)
    for number, (contender, train) in enumerate(CONTENDERS.items()):
        if contender.startswith(LIMIT) and work.is_image:
            continue  # a scan over convolutions is several times slower on a CPU, so it is no limit
        place = directory / f"{name} {number}"
        place.mkdir()
        yield contender, Loop(lambda mark, train=train, place=place: train(work, mark, place, steps))
    if imports(options.peer_python, "keras"):
        yield f"{KERAS}, steps_per_execution={work.k}", KerasLoop(options.peer_python, name, steps)


def most_steps(work: Work, options: argparse.Namespace) -> int:
    """More than all turns take."""
    return work.k * (WARM + work.looks + 2) * (options.rounds + 3)


def rounds(found: Iterable[tuple[str, Turning]], looks: int, count: int) -> Rounds:
    """The turns of all, round by round, each round from another one on."""
    turning, measured = dict(found), []
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
    """Microseconds a step, of the clock and of the CPU."""
    return turn.seconds / turn.steps * 1e6, turn.cpu_seconds / turn.steps * 1e6


def over(measured: Rounds, name: str, ours: str, of_cpu: bool) -> list[float]:
    """Within rounds, the time of one over that of ours."""
    return [each(turns[name])[of_cpu] / each(turns[ours])[of_cpu] for turns in measured]


def table(title: str, measured: Rounds, ours: Iterable[str]) -> None:
    """One line a loop."""
    heads = [f"{what} over {name}" for name in ours for what in ("time", "CPU time")]
    print(f"\n| {title} | steps/s | us a step | CPU us a step | {' | '.join(heads)} |\n|{' --- |' * (4 + len(heads))}")
    for name in measured[0]:
        wall, cpu = (statistics.median(each(turns[name])[i] for turns in measured) for i in (0, 1))
        ratios = [ratio(over(measured, name, base, of_cpu)) for base in ours for of_cpu in (False, True)]
        print(f"| {name} | {1e6 / wall:,.0f} | {wall:,.1f} | {cpu:,.1f} | {' | '.join(ratios)} |", flush=True)


def best_peer(measured: Rounds) -> None:
    """The one that is nearest to ours, by the clock and by CPU time."""
    names = [name for name in measured[0] if not name.startswith((OF_OURS, LIMIT))]
    for what, of_cpu in (("time", False), ("CPU time", True)):
        name = min(names, key=lambda name: statistics.median(over(measured, name, OURS, of_cpu)))
        print(f"Best peer by {what}: {name}, {ratio(over(measured, name, OURS, of_cpu))} of ours.")


def overheads(count: int) -> None:
    """A line for each number of leaves."""
    print(f"\n| leaves of the state | ours, CPU us a dispatch | bare jit call | ours over bare |\n|{' --- |' * 4}")
    for leaves in LEAVES:
        timed: Mapping[str, object] = dispatches(leaves, max(20, 2000 // leaves))
        found: list[dict[str, float]] = []
        for _ in range(count + 1):
            found.append({name: once() for name, once in timed.items()})
        ours, bare = (statistics.median(one[name] for one in found[1:]) for name in ("ours", "bare"))
        ratios = ratio([one["ours"] / one["bare"] for one in found[1:]])
        print(f"| {leaves} | {ours:.1f} | {bare:.1f} | {ratios} |", flush=True)


def pipeline(directory: Path, options: argparse.Namespace) -> None:
    """Three lines, and what counts: both against the slower of them, and against their sum."""
    work = WORKS["small CNN"]
    write_images(directory / "images", work, RECORDS)
    found = pipeline_loops(work, directory / "images", directory, most_steps(work, options))
    measured = rounds(found, work.looks, options.rounds)
    table("small CNN, JPEGs of 32x32", measured, ["both"])
    alone = [(each(turns["input alone"]), each(turns["training alone"]), each(turns["both"])) for turns in measured]
    print(f"Time of both over the slower: {ratio([both[0] / max(a[0], b[0]) for a, b, both in alone])}.")
    print(f"CPU time of both over the sum: {ratio([both[1] / (a[1] + b[1]) for a, b, both in alone])}.")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=17)
    parser.add_argument("--peer_python", default=sys.executable, help="the Python that has Keras")
    parser.add_argument("--only", nargs="*", default=[*WORKS, DISPATCH, INPUT], help="of: %(default)s")
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.only = 3, ["tiny MLP", DISPATCH]
    print(f"{options.rounds} rounds, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        for name in (name for name in options.only if name in WORKS):
            looks = QUICK_LOOKS if options.quick else WORKS[name].looks
            measured = rounds(loops(name, Path(scratch), options), looks, options.rounds)
            table(name, measured, [OURS])
            best_peer(measured)
        if DISPATCH in options.only:
            overheads(options.rounds)
        if INPUT in options.only:
            pipeline(Path(scratch), options)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
