"""ImageNet's train tar to shards: ours, a bare loop, TFDS and MosaicML's MDSWriter.

    python -m benchmarks.bench_conversion [--megabytes 1150] [--rounds 15] [--peers tfds,mds]

Each round runs `python -m converters.imagenet_to_gcs`, then the bare loop, in processes of their own, on the same tar
in a warm page cache; the first rounds run the peers too. Prints medians, and of
the others' time over ours within rounds the median and the quartiles: of the complete process, and "inside", without
its start and imports. --before: the conversion of another checkout runs in each round as well. The peer mds needs
`pip install mosaicml-streaming`, perhaps in an environment of its own (--mds_python)."""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.conversion_data import write_raw
from benchmarks.harness import ROOT, has_module, load, module, run, spread

OURS, BARE, BEFORE = "infeed", "bare-loop", "before"
PEERS = {"tfds": "tensorflow_datasets", "mds": "streaming"}  # and what each imports


class Times(NamedTuple):
    """Seconds of one conversion: of the complete process, and without its start."""

    cpu: float
    wall: float
    cpu_inside: float
    wall_inside: float


def python_of(contender: str, options: argparse.Namespace) -> str:
    """The interpreter that runs a contender."""
    return options.mds_python if contender == "mds" else sys.executable


def convert(contender: str, raw: Path, output: Path, options: argparse.Namespace) -> Times:
    """One contender, once."""
    name, checkout = (OURS, options.before) if contender == BEFORE else (contender, ROOT)
    command = [
        python_of(contender, options),
        *module("conversion_contenders"),
        name,
        str(raw),
        str(output),
    ]
    printed, took = run(command, checkout)
    shutil.rmtree(output, ignore_errors=True)
    inside = json.loads(printed.splitlines()[-1])
    records = len(json.loads((raw / "images.json").read_text()))
    if inside["records"] != records:
        sys.exit(f"{contender} wrote {inside['records']} of {records} records.")
    return Times(took.cpu, took.wall, inside["cpu"], inside["seconds"])


def table(rounds: list[dict[str, Times]], raw_bytes: int, records: int) -> None:
    """One line per contender."""
    print(
        "| | CPU s | wall s | CPU s inside | wall s inside | CPU us a record inside | MB a CPU second inside |"
    )
    print("|" + " --- |" * 7)
    for name in rounds[0]:
        runs = [times[name] for times in rounds if name in times]
        cpu, wall, cpu_in, wall_in = (
            statistics.median(column) for column in zip(*runs, strict=True)
        )
        per = f"{cpu_in / records * 1e6:.0f} | {raw_bytes / cpu_in / 1e6:.0f}"
        print(f"| {name} | {cpu:.2f} | {wall:.2f} | {cpu_in:.2f} | {wall_in:.2f} | {per} |")
    print(
        f"\n| time over ours: median (quartiles) | {' | '.join(Times._fields)} |\n|{' --- |' * 5}"
    )
    for name in list(rounds[0])[1:]:
        both = [(times[name], times[OURS]) for times in rounds if name in times]
        cells = [
            spread([theirs[i] / ours[i] for theirs, ours in both])
            for i in range(len(Times._fields))
        ]
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=1150)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument(
        "--peer_rounds",
        type=int,
        default=3,
        help="rounds in which the peers run too: they are slow",
    )
    parser.add_argument("--before", type=Path, help="another checkout of infeed, to compare with")
    parser.add_argument(
        "--mds_python", default=sys.executable, help="the Python that has mosaicml-streaming"
    )
    parser.add_argument(
        "--scratch", help="a directory on the disk to measure (default: that of temporary files)"
    )
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    for peer in peers:
        if not has_module(python_of(peer, options), PEERS[peer]):
            sys.exit(f"--peers: {python_of(peer, options)} has no {PEERS[peer]}.")
    with tempfile.TemporaryDirectory(dir=options.scratch) as scratch:
        raw = Path(scratch, "raw")
        write_raw(raw, options.megabytes * 10**6)
        images = json.loads((raw / "images.json").read_text())
        rounds = []
        for number in range(options.rounds):
            before = [BEFORE] if options.before else []
            contenders = [OURS, *before, BARE, *(peers if number < options.peer_rounds else ())]
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            rounds.append(
                {name: convert(name, raw, Path(scratch, "output"), options) for name in contenders}
            )
    raw_bytes = sum(image[2] for image in images)
    print(f"{len(images):,} images, {raw_bytes / 1e9:.2f} GB; {options.rounds} rounds; {load()}\n")
    table(rounds, raw_bytes, len(images))


if __name__ == "__main__":
    main()
