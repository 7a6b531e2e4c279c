"""Reading shuffled records from a local disk: ours against plain TFRecordDataset and against those that shuffle.

    python tests/benchmarks/bench_reading.py [--records 18200] [--rounds 9] [--peer_python ...] [--data DIR]

Records of noise, 110 KB in the mean, the same in the format of each, in a warm page cache. Each contender reads all
of them in a process of its own, in turn, round by round. Printed are medians, and of the ratios to ours within rounds
the median with an interval that holds the true one in 95 of 100 cases (from six rounds on). Then: how soon a first
batch comes. Peers that neither this interpreter nor --peer_python can import are left out. Install them, perhaps in an
environment of their own, with: pip install grain array_record webdataset mosaicml-streaming google-crc32c."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from reading_contenders import CONTENDERS

OURS = "ours"
NO_PEERS = (OURS, "bare loop")
COLUMNS = ("cpu", "kernel", "wall", "peak")
TIMEOUT_SECONDS = 600
HERE = Path(__file__).parent


def program(python: str, *arguments: str) -> str:
    """The output of one of the programs beside this one."""
    command = [python, *arguments]
    env = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, env=env)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)} failed:\n{done.stderr[-3000:]}")
    return done.stdout


def imports(python: str, module: str) -> bool:
    """Whether an interpreter has a module."""
    probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([python, "-c", probe], check=False).returncode == 0


def present(options: argparse.Namespace) -> dict[str, str]:
    """The interpreter of each contender that can run, in their order."""
    found, missing = {}, set()
    for name, contender in CONTENDERS.items():
        pythons = [python for python in (sys.executable, options.peer_python) if imports(python, contender.imports)]
        if pythons:
            found[name] = pythons[0]
        else:
            missing.add(contender.imports)
    for module in sorted(missing):
        print(f"Left out: neither Python has {module!r}.", file=sys.stderr)
    return found


def write_data(directory: Path, pythons: dict[str, str], records: int) -> None:
    """The records in the formats of all that run, unless they are there; all files are read once."""
    formats = {CONTENDERS[name].format: python for name, python in pythons.items()}
    for name, python in formats.items():
        if not (directory / name).exists():
            print(f"writing {name}", file=sys.stderr)
            program(python, str(HERE / "reading_data.py"), name, str(directory / name), str(records))
        for path in sorted((directory / name).glob("*")):
            if path.is_file():
                subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)


def run(name: str, python: str, directory: Path) -> dict[str, float]:
    """One contender, once: microseconds a record, and MiB."""
    data = directory / CONTENDERS[name].format
    found = json.loads(program(python, str(HERE / "reading_contenders.py"), name, str(data)).splitlines()[-1])
    each = {key: found[key] / found["records"] * 1e6 for key in ("wall", "user", "kernel")}
    return each | {"cpu": each["user"] + each["kernel"], "peak": found["peak"]}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """From the k-th smallest to the k-th largest: holds the true median with 95 %, whatever the distribution.

    Of fewer than six values none does; then it is the least and the largest."""
    ordered, n, k, outside = sorted(values), len(values), 0, 0.0
    while k < n // 2 and (outside := outside + 2 * math.comb(n, k) / 2**n) <= 0.05:
        k += 1
    return ordered[max(k - 1, 0)], ordered[n - max(k, 1)]


def ratio(values: Sequence[float]) -> str:
    """Median and interval."""
    low, high = interval(values)
    return f"{statistics.median(values):.2f} ({low:.2f}, {high:.2f})"


def over_ours(rounds: list[dict[str, dict[str, float]]], name: str, key: str) -> list[float]:
    """The ratios within rounds."""
    return [found[name][key] / found[OURS][key] for found in rounds if name in found]


def table(rounds: list[dict[str, dict[str, float]]]) -> None:
    """One line a contender."""
    print("| us a record | CPU | of it kernel | wall | MiB over imports | CPU over ours | wall over ours |")
    print("|" + " --- |" * 7)
    for name in rounds[0]:
        runs = [found[name] for found in rounds if name in found]
        cpu, kernel, wall, peak = (statistics.median(run[key] for run in runs) for key in COLUMNS)
        over = [ratio(over_ours(rounds, name, key)) for key in ("cpu", "wall")]
        print(f"| {name} | {cpu:.1f} | {kernel:.1f} | {wall:.0f} | {peak:.0f} | {' | '.join(over)} |")


def best(rounds: list[dict[str, dict[str, float]]], shuffled: bool) -> None:
    """The best of a kind, by CPU and by wall time."""
    kind = "shuffled" if shuffled else "sequential"
    names = [name for name in rounds[0] if CONTENDERS[name].shuffled == shuffled and not name.startswith(NO_PEERS)]
    for key in ("cpu", "wall") if names else ():
        name = min(names, key=lambda name: statistics.median(over_ours(rounds, name, key)))
        print(f"Best {kind} peer by {key}: {name}, {ratio(over_ours(rounds, name, key))} of ours.")


def starts(directory: Path) -> None:
    """How soon the first batch comes."""
    output = program(sys.executable, str(HERE / "reading_starts.py"), str(directory / "tfrecord"))
    found = json.loads(output.splitlines()[-1])
    head = f"ms to the first batch (state of {found['state_bytes']} bytes)"
    print(f"\n| {head} | cold | resumed | ratio |\n|{' --- |' * 4}")
    for what in ("first_read", "first_batch"):
        cold, resumed = found[f"{what} cold"], found[f"{what} resumed"]
        over = ratio([b / a for a, b in zip(cold, resumed, strict=True)])
        print(f"| {what} | {statistics.median(cold):.0f} | {statistics.median(resumed):.0f} | {over} |")


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=18_200, help="2 GB in each of four formats")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--slow_rounds", type=int, default=3, help="rounds in which all run, not only the fastest")
    parser.add_argument("--peer_python", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--data", help="a directory that keeps the data (default: a temporary one)")
    options = parser.parse_args()
    pythons = present(options)
    with contextlib.ExitStack() as stack:
        directory = Path(options.data or stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(directory, pythons, options.records)
        rounds = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
            names = [each for each in pythons if CONTENDERS[each].every_round or number < options.slow_rounds]
            rounds.append({name: run(name, pythons[name], directory) for name in names})
        how_many = f"{options.rounds} rounds, all in {options.slow_rounds}"
        print(f"{options.records:,} records; {how_many}; load {os.getloadavg()[0]:.1f}\n")
        table(rounds)
        print()
        best(rounds, shuffled=False)
        best(rounds, shuffled=True)
        starts(directory)


if __name__ == "__main__":
    main()
