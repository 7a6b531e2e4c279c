"""ImageNet's train tar to shards: ours beside a bare loop, its ancestor, TFDS and MosaicML's MDSWriter.

    python tests/benchmarks/bench_conversion.py [--megabytes 1150] [--pairs 15] [--peers infeed-x2,ancestor,tfds,mds]

Each round runs `python -m converters.imagenet_to_gcs` and, right after it, the bare loop, in processes of their own, on
the same tar in a warm page cache; the first rounds run the peers too (infeed-x2 is ours in two processes). Printed are
medians, and the quartiles of the ratios within rounds: the others' time over ours, of the whole process, start and
imports in it, and "inside", without them. --before takes another checkout, whose conversion runs in each round as well:
that is what a change costs. The peer mds needs `pip install mosaicml-streaming`, perhaps in an
environment of its own (--mds_python)."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[2])]

from conversion_data import write_raw

from pipeline.errors import how_to_install

OURS = "infeed"
BARE = "bare-loop"
BEFORE = "before"  # ours, as in the checkout --before
PEERS = {  # and what each imports
    "infeed-x2": "apache_beam",
    "ancestor": "tensorflow",
    "tfds": "tensorflow_datasets",
    "mds": "streaming",
}
TIMEOUT_SECONDS = 1800


class Took(NamedTuple):
    """Seconds of one run: of the whole process, and without its start."""

    cpu: float
    wall: float
    cpu_inside: float
    wall_inside: float


def python_of(contender: str, options: argparse.Namespace) -> str:
    """The interpreter that runs a contender."""
    return options.mds_python if contender == "mds" else sys.executable


def check_installed(peers: list[str], options: argparse.Namespace) -> None:
    """Exits with what to install where a peer is missing."""
    for peer in peers:
        if peer not in PEERS:
            sys.exit(f"--peers: unknown peer {peer!r}; there are {', '.join(PEERS)}.")
        probe = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({PEERS[peer]!r}) is None)"
        if subprocess.run([python_of(peer, options), "-c", probe], check=False).returncode:
            install = "pip install mosaicml-streaming" if peer == "mds" else how_to_install("read", "tfds")
            sys.exit(f"--peers: {peer} is not installed in {python_of(peer, options)}. Run {install}.")


def run(contender: str, raw: Path, scratch: Path, options: argparse.Namespace) -> Took:
    """One contender, once. CPU time is that of the process and all that it started and waited for."""
    output, program = scratch / "output", Path(__file__).with_name("conversion_contenders.py")
    if contender == BEFORE:
        contender, program = OURS, options.before / "tests/benchmarks/conversion_contenders.py"
    command = [python_of(contender, options), str(program), contender, str(raw), str(output)]
    os.sync()  # what the last one wrote is not to be paid by this one
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False)
    wall, after = time.perf_counter() - begun, os.times()
    shutil.rmtree(output, ignore_errors=True)
    if done.returncode:
        sys.exit(f"{contender} failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    records = len(json.loads((raw / "images.json").read_text()))
    if found["records"] != records:
        sys.exit(f"{contender} wrote {found['records']} of {records} records.")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(cpu, wall, found["cpu"], found["seconds"])


def table(rounds: list[dict[str, Took]], raw_bytes: int, records: int) -> None:
    """One line a contender."""
    print("| | CPU s | wall s | CPU s inside | wall s inside | CPU us a record inside | MB a CPU second inside |")
    print("|" + " --- |" * 7)
    for name in rounds[0]:
        runs = [found[name] for found in rounds if name in found]
        cpu, wall, cpu_in, wall_in = (statistics.median(column) for column in zip(*runs, strict=True))
        per = f"{cpu_in / records * 1e6:.0f} | {raw_bytes / cpu_in / 1e6:.0f}"
        print(f"| {name} | {cpu:.2f} | {wall:.2f} | {cpu_in:.2f} | {wall_in:.2f} | {per} |")
    print(f"\n| time over ours: median (quartiles) | {' | '.join(Took._fields)} |\n|{' --- |' * 5}")
    for name in list(rounds[0])[1:]:
        cells = []
        for i in range(len(Took._fields)):
            ratios = [found[name][i] / found[OURS][i] for found in rounds if name in found]
            low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
            cells.append(f"{middle:.2f} ({low:.2f}, {high:.2f})")
        print(f"| {name} | {' | '.join(cells)} |")


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1150)
    parser.add_argument("--pairs", type=int, default=15, help="rounds, each of one run of each contender")
    parser.add_argument("--peers", default="", help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--peer_rounds", type=int, default=3, help="rounds in which the peers run too: they are slow")
    parser.add_argument("--before", type=Path, help="another checkout of infeed, to compare with")
    parser.add_argument("--mds_python", default=sys.executable, help="the Python that has mosaicml-streaming")
    parser.add_argument("--scratch", help="a directory on the disk to measure (default: that of temporary files)")
    options = parser.parse_args()
    peers = [peer for peer in options.peers.split(",") if peer]
    check_installed(peers, options)
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        scratch, raw = Path(name), Path(name) / "raw"
        write_raw(raw, options.megabytes * 10**6)
        images = json.loads((raw / "images.json").read_text())
        rounds = []
        for number in range(options.pairs):
            before = [BEFORE] if options.before else []
            contenders = [OURS, *before, BARE, *(peers if number < options.peer_rounds else ())]
            print(f"round {number + 1} of {options.pairs}", file=sys.stderr)
            rounds.append({each: run(each, raw, scratch, options) for each in contenders})
        raw_bytes = sum(image[2] for image in images)
    rows = f"{len(images):,} images, {raw_bytes / 1e9:.2f} GB"
    print(f"{rows}; {options.pairs} rounds, the peers in {options.peer_rounds}; load {os.getloadavg()[0]:.1f}\n")
    table(rounds, raw_bytes, len(images))


if __name__ == "__main__":
    main()
