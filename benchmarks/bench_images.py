"""From payloads to batches of pixels: random resized crops to 224 of photo-like JPEGs, against tf.data and grain + PIL.

    pip install --target GRAIN grain pillow
    python -m benchmarks.bench_images [--grain GRAIN] [--rounds 30]

Each contender is a process of its own, which decodes all images when it is its turn: round by round, in another order
each time, after two turns that do not count. Prints medians of CPU microseconds of all threads per image, and of theirs
over ours within rounds the median and the quartiles. Without --grain this Python has to have it, or it is left out."""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.conversion_data import photograph
from benchmarks.harness import ROOT, has_module, load, module, spread
from benchmarks.image_contenders import CONTENDERS

OURS, COUNT = "ours", 320
SIZES = (
    (375, 500),
    (333, 500),
    (500, 375),
    (500, 333),
    (500, 500),
    (480, 640),
    (768, 1024),
    (1200, 1600),
)
SHARES = (0.48, 0.18, 0.13, 0.06, 0.05, 0.05, 0.03, 0.02)  # as often as in ILSVRC2012
Key = tuple[str, int]  # a contender and its threads
Took = dict[str, float]  # cpu and wall microseconds per image


class Process:
    """A contender that waits for its turn."""

    def __init__(self, key: Key, directory: Path, grain: str | None) -> None:
        path = [grain] if grain and CONTENDERS[key[0]].imports == "grain" else []
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, *module("image_contenders"), key[0], str(directory), str(key[1])]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._child = subprocess.Popen(command, **pipes, text=True, env=env, cwd=ROOT)

    def turn(self) -> Took:
        """All images once."""
        assert self._child.stdin
        assert self._child.stdout
        print(file=self._child.stdin, flush=True)
        line = self._child.stdout.readline()
        if not line:
            sys.exit(f"{self._child.args} ended with {self._child.wait()}.")
        measured = json.loads(line)
        return {what: measured[what] / measured["images"] * 1e6 for what in ("cpu", "wall")}

    def end(self) -> None:
        """Waits until it has ended."""
        self._child.communicate()


def write_images(directory: Path) -> None:
    """The photographs, the same ones every time."""
    random = np.random.default_rng(0)
    for number, size in enumerate(random.choice(len(SIZES), COUNT, p=SHARES).tolist()):
        (directory / f"{number:04d}.jpg").write_bytes(photograph(random, *SIZES[size]))


def measured(
    keys: Sequence[Key], directory: Path, options: argparse.Namespace
) -> dict[Key, list[Took]]:
    """What each took in each round."""
    processes = {key: Process(key, directory, options.grain) for key in keys}
    for process in processes.values():
        process.turn()
        process.turn()
    turns: dict[Key, list[Took]] = {key: [] for key in keys}
    order = random.Random(0)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}, {load()}", file=sys.stderr)
        for key in order.sample(keys, len(keys)):
            turns[key].append(processes[key].turn())
    for process in processes.values():
        process.end()
    return turns


def table(measured: dict[Key, list[Took]]) -> None:
    """One line per contender."""
    print(
        "| from payloads to batches | threads | CPU us an image | images/s | CPU over ours | wall over ours |"
    )
    print("|" + " --- |" * 6)
    for (name, threads), turns in measured.items():
        cpu, wall = (statistics.median(turn[what] for turn in turns) for what in ("cpu", "wall"))
        both = list(zip(turns, measured[OURS, threads], strict=True))
        over = [
            spread([theirs[what] / ours[what] for theirs, ours in both]) for what in ("cpu", "wall")
        ]
        print(f"| {name} | {threads} | {cpu:.0f} | {1e6 / wall:.0f} | {' | '.join(over)} |")


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--grain", help="the directory into which grain was installed")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    names = [
        name
        for name, each in CONTENDERS.items()
        if has_module(sys.executable, each.imports, options.grain or "")
    ]
    with tempfile.TemporaryDirectory() as directory:
        write_images(Path(directory))
        turns = measured(
            [(name, threads) for threads in (1, 2) for name in names], Path(directory), options
        )
    print(f"{options.rounds} rounds; {load()}\n")
    table(turns)


if __name__ == "__main__":
    main()
