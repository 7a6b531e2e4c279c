"""From payloads to batches of pixels: random resized crops to 224 of real photographs, against tf.data and grain + PIL.

    python tests/benchmarks/image_data.py PHOTOS DIR        (see there)
    pip install --target GRAIN grain pillow
    python tests/benchmarks/bench_images.py DIR [--grain GRAIN] [--rounds 30]

Each contender is a process of its own, which decodes all images when it is its turn: round by round, in another order
each time, after two turns that do not count. Printed are CPU microseconds of all threads an image (median), and how
ours compares: the geometric mean of the ratios within rounds, with a 95 % interval by bootstrap over rounds. Then
train_dataset alone and under a Trainer whose step does nothing. Without --grain this Python has to have it, or it is
left out."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from image_contenders import CONTENDERS

HERE = Path(__file__).parent
OURS, GRAIN = "ours", "grain + PIL"
TWO_THREADS = (OURS, "tf.data, big_vision's recipe", GRAIN)
MOST_OF_TF_DATA, MOST_OF_GRAIN = 0.9, 0.5
Key = tuple[str, int]  # a contender and its threads


class Process:
    """A contender that waits for its turn."""

    def __init__(self, key: Key, directory: str, grain: str | None) -> None:
        path = [grain] if grain and CONTENDERS[key[0]].imports == "grain" else []
        env = os.environ | {"PYTHONPATH": os.pathsep.join(path), "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, str(HERE / "image_contenders.py"), key[0], directory, str(key[1])]
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def turn(self) -> dict[str, float]:
        """All images once: CPU and wall microseconds an image."""
        assert self._child.stdin
        assert self._child.stdout
        self._child.stdin.write("\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            sys.exit(f"{self._child.args} ended with {self._child.wait()}.")
        found = json.loads(line)
        return {what: found[what] / found["images"] * 1e6 for what in ("cpu", "wall")}

    def end(self) -> None:
        """Waits until it has ended."""
        self._child.communicate()


def measured(keys: Sequence[Key], options: argparse.Namespace) -> dict[Key, list[dict[str, float]]]:
    """What each took in each round."""
    processes = {key: Process(key, options.directory, options.grain) for key in keys}
    for process in processes.values():
        process.turn()
        process.turn()
    found: dict[Key, list[dict[str, float]]] = {key: [] for key in keys}
    order = random.Random(0)
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
        for key in order.sample(keys, len(keys)):
            found[key].append(processes[key].turn())
    for process in processes.values():
        process.end()
    return found


def ratio(over: Sequence[float], under: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of the ratios within rounds, and the ends of its 95 % interval by bootstrap over rounds."""
    logs = np.log(over) - np.log(under)
    drawn = np.random.default_rng(0).choice(logs, (10_000, len(logs))).mean(axis=1)
    mean, low, high = np.exp([logs.mean(), *np.quantile(drawn, [0.025, 0.975])]).tolist()
    return mean, low, high


def table(found: dict[Key, list[dict[str, float]]]) -> None:
    """One line a contender."""
    print(
        "| from payloads to batches | threads | CPU us an image | images/s | ours over it, CPU | wall |\n|"
        + " --- |" * 6
    )
    for (name, threads), turns in found.items():
        cpu, wall = (statistics.median(turn[what] for turn in turns) for what in ("cpu", "wall"))
        against = [
            "{:.3f} ({:.3f}, {:.3f})".format(*_ours_over(found, (name, threads), what)) for what in ("cpu", "wall")
        ]
        print(f"| {name} | {threads} | {cpu:.0f} | {1e6 / wall:.0f} | {' | '.join(against)} |")


def _ours_over(found: dict[Key, list[dict[str, float]]], key: Key, what: str) -> tuple[float, float, float]:
    ours = found[OURS, key[1]]
    return ratio([turn[what] for turn in ours], [turn[what] for turn in found[key]])


def judged(found: dict[Key, list[dict[str, float]]]) -> None:
    """The targets, by CPU on one thread."""
    peers = [key for key in found if key[1] == 1 and not CONTENDERS[key[0]].own and key[0] != GRAIN]
    best = min(peers, key=lambda key: statistics.median(turn["cpu"] for turn in found[key]))
    for key, most in ((best, MOST_OF_TF_DATA), ((GRAIN, 1), MOST_OF_GRAIN)):
        if key in found:
            mean, low, high = _ours_over(found, key, "cpu")
            met = "missed" if low > most else "met" if mean <= most else "met by the interval's lower end only"
            print(f"At most {most} x {key[0]}: {met}, {mean:.3f} ({low:.3f}, {high:.3f}).")
    both = [found[OURS, threads] for threads in (2, 1)]
    for what in ("cpu", "wall"):
        two, one = ([turn[what] for turn in turns] for turns in both)
        print("Two threads over one, {}: {:.3f} ({:.3f}, {:.3f}).".format(what, *ratio(two, one)))


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", help="the images that image_data.py wrote")
    parser.add_argument("--grain", help="the directory into which grain was installed")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--training_steps", type=int, default=60, help="batches of 64 in each turn of the second part")
    options = parser.parse_args()
    probe = "import importlib.util, sys; sys.exit(importlib.util.find_spec('grain') is None)"
    env = os.environ | {"PYTHONPATH": options.grain or ""}
    has_grain = subprocess.run([sys.executable, "-c", probe], check=False, env=env).returncode == 0
    names = [name for name in CONTENDERS if name != GRAIN or has_grain]
    keys = [(name, 1) for name in names] + [(name, 2) for name in TWO_THREADS if name in names]
    found = measured(keys, options)
    print(f"{options.rounds} rounds; load {os.getloadavg()[0]:.1f}\n")
    table(found)
    print()
    judged(found)
    if options.training_steps:
        command = [sys.executable, str(HERE / "image_training.py"), options.directory, str(options.training_steps)]
        subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
