"""Reading shuffled records from a bucket whose streams are slow: ours, and others that shuffle, against the limit.

    python -m benchmarks.bench_buckets [--streams 4] [--records 5500] [--rounds 3] [--peer_python ...] [--data DIR]
        [--only 'NAME;...']

benchmarks.slow_bucket serves the records, from a process of its own: 30 ms to the first byte, 40 MB/s a stream, `streams`
responses at a time. Each contender reads all records in a process of its own, in turn, round by round. Prints medians,
per MB that the server sent. "allowed" is (requests * latency + bytes / rate) / streams, what the streams need for the
requests that the contender made, over its wall time; "of bare" is bare's wall time over its own, in the same round."""

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
from urllib.request import urlopen

from benchmarks.bucket_contenders import CONTENDERS
from benchmarks.harness import ROOT, has_module, load, module, run, spread

SHARD_BYTES = 38_000_000  # 16 shards: four workers have four each


def present(peer_python: str, only: str) -> dict[str, str]:
    """The interpreter of each contender that can run, in their order."""
    interpreters = {}
    for name, contender in CONTENDERS.items():
        if only and name != "bare" and name not in only.split(";"):
            continue
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
    """A bucket for each format of those that run, unless it is there."""
    formats = {CONTENDERS[name].format: python for name, python in pythons.items()}
    for name, python in formats.items():
        if not (directory / name).exists():
            print(f"writing {name}", file=sys.stderr)
            command = ["reading_data", name, str(directory / name), str(records), str(SHARD_BYTES)]
            run([python, *module(command[0]), *command[1:]])


@contextlib.contextmanager
def served(directory: Path, options: argparse.Namespace) -> Iterator[str]:
    """The endpoint of a server."""
    flags = [f"--{name}={getattr(options, name)}" for name in ("streams", "latency_ms", "rate_mb")]
    command = [sys.executable, *module("slow_bucket"), str(directory), *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def read(name: str, python: str, endpoint: str, options: argparse.Namespace) -> dict[str, float]:
    """One contender, once."""
    counts(endpoint)
    contender = CONTENDERS[name]
    command = [*module("bucket_contenders"), name, contender.format, str(options.streams)]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TMPDIR"] = cache
        try:
            printed, _ = run([python, *command])
        finally:
            del os.environ["TMPDIR"]
    took, count = json.loads(printed.splitlines()[-1]), counts(endpoint)
    sent_mb = count["bytes"] / 1e6
    allowed = count["requests"] * options.latency_ms / 1e3 + sent_mb / options.rate_mb
    return {
        "wall": took["wall"],
        "rate": sent_mb / took["wall"],
        "cpu": (took["user"] + took["kernel"]) * 1e3 / sent_mb,
        "kernel": took["kernel"] * 1e3 / sent_mb,
        "requests": count["requests"],
        "sent": sent_mb,
        "peak": took["peak"],
        "allowed": allowed / options.streams / took["wall"],
        "server": count["cpu_seconds"] / took["wall"],
    }


def counts(endpoint: str) -> dict[str, float]:
    """What the server counted since the last call."""
    with urlopen(f"{endpoint}/_count") as response:
        return json.loads(response.read())


def table(rounds: list[dict[str, dict[str, float]]]) -> None:
    """One line per contender."""
    print(
        "| | wall s | MB/s | allowed | of bare | CPU ms/MB | of it kernel | requests | MB | MiB | server's CPU |"
    )
    print("|" + " --- |" * 11)
    for name in rounds[0]:
        all_of = {key: [times[name][key] for times in rounds] for key in rounds[0][name]}
        middle = {key: statistics.median(values) for key, values in all_of.items()}
        of_bare = spread([times["bare"]["wall"] / times[name]["wall"] for times in rounds])
        print(
            f"| {name} | {middle['wall']:.2f} | {middle['rate']:.0f} | {spread(all_of['allowed'])} | {of_bare} "
            f"| {middle['cpu']:.2f} | {middle['kernel']:.2f} | {middle['requests']:.0f} | {middle['sent']:.0f} "
            f"| {middle['peak']:.0f} | {middle['server']:.0%} |"
        )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--latency_ms", type=float, default=30)
    parser.add_argument("--rate_mb", type=float, default=40)
    parser.add_argument("--records", type=int, default=5500, help="600 MB in each of three formats")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peer_python", default=sys.executable, help="the Python that has the peers"
    )
    parser.add_argument("--data", help="a directory that keeps the data (default: a temporary one)")
    parser.add_argument("--only", default="", help="names of contenders, separated by ';'")
    options = parser.parse_args()
    pythons = present(options.peer_python, options.only)
    with contextlib.ExitStack() as stack:
        directory = Path(options.data or stack.enter_context(tempfile.TemporaryDirectory()))
        write_data(directory, pythons, options.records)
        endpoint = stack.enter_context(served(directory, options))
        os.environ.update(
            AWS_ENDPOINT_URL=endpoint,
            AWS_ACCESS_KEY_ID="benchmark",
            AWS_SECRET_ACCESS_KEY="benchmark",
            AWS_REGION="us-east-1",
            AWS_DEFAULT_REGION="us-east-1",
        )
        rounds = []
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}, {load()}", file=sys.stderr)
            rounds.append({name: read(name, pythons[name], endpoint, options) for name in pythons})
    print(f"{options.streams} streams; {options.rounds} rounds; {load()}\n")
    table(rounds)


if __name__ == "__main__":
    main()
