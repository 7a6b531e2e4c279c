"""What the benchmarks share: programs, what they took, and ratios within rounds, data. Standard library only."""

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["ROOT", "Took", "has_module", "load", "module", "run", "spread", "write_tfrecords"]

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 1800


class Took(NamedTuple):
    """Seconds of a process; cpu: of all its threads, and of the processes that it waited for."""

    cpu: float
    wall: float


def module(name: str) -> list[str]:
    """The arguments after an interpreter that run a module of this directory."""
    return ["-m", f"benchmarks.{name}"]


def has_module(python: str, name: str, path: str = "") -> bool:
    """Whether an interpreter finds a module, perhaps in a directory."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({name!r}) is None)"
    env = os.environ | {"PYTHONPATH": path}
    return subprocess.run([python, "-c", probe], check=False, env=env).returncode == 0


def run(command: Sequence[str], cwd: Path = ROOT) -> tuple[str, Took]:
    """What a program printed, and what it took. Exits with its errors if it fails."""
    os.sync()  # the next program does not pay for what the last one wrote
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        cwd=cwd,
        env=env,
    )
    wall, after = time.perf_counter() - begun, os.times()
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed:\n{done.stderr[-3000:]}")
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return done.stdout, Took(cpu, wall)


def spread(values: Sequence[float]) -> str:
    """The median, and in brackets the quartiles."""
    low, middle, high = (
        statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else [*values] * 3
    )
    return f"{middle:.2f} ({low:.2f}, {high:.2f})"


def load() -> str:
    """What other work the machine has, for the first line of a result."""
    return f"load {os.getloadavg()[0]:.1f}"


def write_tfrecords(
    directory: Path,
    features: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    split: str = "train",
    per_file: int = 1000,
    copies: int = 1,
) -> None:
    """The TFRecords of a split, in files of so many, each file several times, and their index."""
    from pipeline.commands.index import main as index
    from pipeline.shards.example import encode_example
    from pipeline.shards.frames import frame
    from pipeline.shards.schema import Schema

    schema, left = Schema("made", dict(features)), iter(records)
    for number in itertools.count():
        data = b"".join(
            frame(encode_example(schema, record)) for record in itertools.islice(left, per_file)
        )
        if not data:
            break
        for copy in range(number * copies, (number + 1) * copies):
            (directory / f"{split}-{copy:05d}.tfrecord").write_bytes(data)
    with contextlib.redirect_stdout(sys.stderr):
        if index([f"{directory}/{split}-*", f"--split={split}"]):
            raise SystemExit("the records cannot be indexed")
