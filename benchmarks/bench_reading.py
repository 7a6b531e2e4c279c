"""Reading shuffled records from a local disk: ours against plain TFRecordDataset and against those that shuffle.

    python -m benchmarks.bench_reading [--records 18200] [--rounds 9] [--peer_python ...] [--data DIR]

Records of noise, 110 KB in the mean, the same in the format of each, in a warm page cache. Each contender reads all of
them in a process of its own, in turn, round by round. Prints medians, and of the ratios to ours within rounds the
median and the quartiles. Peers that neither this interpreter nor --peer_python can import are left out. Install them,
perhaps in an environment of their own, with: pip install grain array_record webdataset mosaicml-streaming
google-crc32c."""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import has_module, load, module, run, spread
from benchmarks.reading_contenders import CONTENDERS

OURS = "ours"
COLUMNS = ("cpu", "kernel", "wall", "peak")


def present(peer_python: str) -> dict[str, str]:
    """The interpreter of each contender that can run, in their order."""
    interpreters = {}
    for name, contender in CONTENDERS.items():
        pythons = [
            python
            for python in (sys.executable, peer_python)
            if has_module(python, contender.imports)
        ]
        if pythons:
            interpreters[name] = pythons[0]
        else:
            print(f"{name} is left out: neither Python has {contender.imports!r}.", file=sys.stderr)
    return interpreters


def write_data(directory: Path, pythons: dict[str, str], records: int) -> None:
    """The records in the formats of all that run, unless they are there; all files are read once."""
    formats = {CONTENDERS[name].format: python for name, python in pythons.items()}
    for name, python in formats.items():
        if not (directory / name).exists():
            print(f"writing {name}", file=sys.stderr)
            run([python, *module("reading_data"), name, str(directory / name), str(records)])
        for path in sorted((directory / name).glob("*")):
            if path.is_file():
                subprocess.run(["cat", path], stdout=subprocess.DEVNULL, check=True)


def read(name: str, python: str, directory: Path) -> dict[str, float]:
    """One contender, once: microseconds per record, and MiB."""
    data = directory / CONTENDERS[name].format
    printed, _ = run([python, *module("reading_contenders"), name, str(data)])
    measured = json.loads(printed.splitlines()[-1])
    each = {key: measured[key] / measured["records"] * 1e6 for key in ("wall", "user", "kernel")}
    return each | {"cpu": each["user"] + each["kernel"], "peak": measured["peak"]}


def table(rounds: list[dict[str, dict[str, float]]]) -> None:
    """One line per contender."""
    print(
        "| us a record | CPU | of it kernel | wall | MiB over imports | CPU over ours | wall over ours |"
    )
    print("|" + " --- |" * 7)
    for name in rounds[0]:
        both = [(times[name], times[OURS]) for times in rounds if name in times]
        cpu, kernel, wall, peak = (
            statistics.median(theirs[key] for theirs, _ in both) for key in COLUMNS
        )
        over = [
            spread([theirs[key] / ours[key] for theirs, ours in both]) for key in ("cpu", "wall")
        ]
        print(
            f"| {name} | {cpu:.1f} | {kernel:.1f} | {wall:.0f} | {peak:.0f} | {' | '.join(over)} |"
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=18_200, help="2 GB in each of four formats")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument(
        "--slow_rounds", type=int, default=3, help="rounds in which all run, not only the fastest"
    )
    parser.add_argument(
        "--peer_python", default=sys.executable, help="the Python that has the peers"
    )
    parser.add_argument("--data", help="a directory that keeps the data (default: a temporary one)")
    options = parser.parse_args()
    pythons = present(options.peer_python)
    with contextlib.ExitStack() as stack:
        directory = Path(options.data or stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(directory, pythons, options.records)
        rounds = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, {load()}", file=sys.stderr)
            names = [
                each
                for each in pythons
                if CONTENDERS[each].every_round or number < options.slow_rounds
            ]
            rounds.append({name: read(name, pythons[name], directory) for name in names})
    print(
        f"{options.records:,} records; {options.rounds} rounds, all in {options.slow_rounds}; {load()}\n"
    )
    table(rounds)


if __name__ == "__main__":
    main()
