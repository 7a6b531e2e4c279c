"""What a conversion from a bucket to a bucket costs a record: requests, bytes, CPU; and what that makes of big data.

    python tests/benchmarks/bench_gcs_conversion.py [--megabytes 100,400] [--rounds 3]

ImageNet's train tar with photo-like JPEGs of 110 KB, shards of 100 MB, one process, plain HTTP, no latency. What two
sizes differ by is the cost of a record: start, imports and graph are in both. The server's CPU is not counted. Prints
the costs, and on paper those of ImageNet and of 100 TB on Dataflow (beam_jobs/RUNNERS.md)."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / "servers"), str(Path(__file__).parents[2])]

from conversion_data import MEAN_BYTES, write_raw
from fake_gcs.server import Server, start

KINDS = {
    "ranged reads": "^GET .*alt=media",
    "uploads": "^(POST|PUT) /(resumable/)?upload",
    "listings": r"^GET /storage/v1/b/[^/]+/o\?",
    "metadata": "^GET ",
}
DATASETS = {"ImageNet": (1_331_167, 144e9), "100 TB": (910_000_000, 100e12)}
SHARD_BYTES = 10**8


@dataclass(frozen=True)
class Run:
    """One conversion: requests by kind, bytes read, CPU seconds of the process."""

    records: int
    requests: Counter[str]
    read_bytes: int
    cpu_seconds: float


def convert(server: Server, megabytes: int) -> Run:
    """Converts the raw data of that size in bucket "costs", and forgets the shards."""
    flags = [f"--raw_data_dir=gs://costs/{megabytes}", f"--gcs_output_path=gs://costs/out-{megabytes}"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    server.reset()
    subprocess.run(
        [sys.executable, "-m", "converters.imagenet_to_gcs", *flags, "--splits=train"],
        env={**os.environ, **server.env},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = Counter(_kind(request.line) for request in server.requests())
    read = sum(request.response_bytes for request in server.requests(KINDS["ranged reads"]))
    for name in server.objects("costs", f"out-{megabytes}/"):
        server.delete("costs", name)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Run(megabytes * 10**6 // MEAN_BYTES, found, read, cpu)


def _kind(line: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, line)), "others")


def costs(server: Server, sizes: list[int], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """A record's: requests by kind, "bytes read", "CPU us" (median); and the least and the most of the CPU."""
    found, cpu = {}, []
    for _ in range(rounds):
        small, big = (convert(server, size) for size in sizes)
        records = big.records - small.records
        found = {kind: (big.requests[kind] - small.requests[kind]) / records for kind in (*KINDS, "others")}
        found["bytes read"] = (big.read_bytes - small.read_bytes) / records
        cpu.append(1e6 * (big.cpu_seconds - small.cpu_seconds) / records)
    found["CPU us"] = statistics.median(cpu)
    return found, {"least": min(cpu), "most": max(cpu)}


def paper(cost: dict[str, float]) -> None:
    """What it makes of big datasets, in hours of a core as here."""
    print("\n| | records | shards | reads | uploads | bytes read | written | core hours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for name, (records, size) in DATASETS.items():
        hours = records * cost["CPU us"] / 3.6e9
        print(
            f"| {name} | {records:,} | {size / SHARD_BYTES:,.0f} | {records * cost['ranged reads']:,.0f} | "
            f"{records * cost['uploads']:,.0f} | {records * cost['bytes read'] / 1e9:,.0f} GB | {size / 1e9:,.0f} GB | "
            f"{hours:,.2f} |"
        )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", default="100,400")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    sizes = [int(size) for size in args.megabytes.split(",")]
    with tempfile.TemporaryDirectory() as directory, start(Path(directory)) as server:
        server.make_bucket("costs")
        for size in sizes:
            write_raw(Path(directory) / str(size), size * 10**6)
            for file in (Path(directory) / str(size)).glob("*.tar"):
                server.write("costs", f"{size}/{file.name}", file.read_bytes())
        cost, spread = costs(server, sizes, args.rounds)
    for kind, value in cost.items():
        print(f"{kind} a record: {value:,.3f}")
    print(f"CPU us a record: least {spread['least']:,.0f}, most {spread['most']:,.0f} of {args.rounds} rounds")
    paper(cost)


if __name__ == "__main__":
    main()
