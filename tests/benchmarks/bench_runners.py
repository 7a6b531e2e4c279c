"""The same conversion on the runners of this machine, with one worker and with two: seconds and MB/s.

    python tests/benchmarks/bench_runners.py [--megabytes 1150] [--rounds 5]

Each run is the command, in a process of its own, on the same tar in a warm page cache; the runners take turns within
a round. Whole: the process. Inside: what the command says of itself, without its own imports but with the start of its
workers. All manifests must be the same."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT)]

from conversion_data import write_raw

from converters.imagenet.layouts import TRAIN_TAR

RUNNERS = {
    "local, in process": (),
    "local, 2 processes": ("--local_processes=2",),
    "dask, 1 worker": ("--runner=dask",),
    "dask, 2 workers": ("--runner=dask", "--local_processes=2"),
}
TIMEOUT_SECONDS = 1800


def run(flags: tuple[str, ...], raw: Path, output: Path) -> tuple[float, float, bytes]:
    """(seconds of the process, seconds by its own word, the manifest)."""
    command = [sys.executable, "-m", "converters.imagenet_to_gcs", f"--raw_data_dir={raw}", "--splits=train", *flags]
    os.sync()  # what the last one wrote is not to be paid by this one
    begun = time.perf_counter()
    done = subprocess.run(
        [*command, f"--gcs_output_path={output}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    whole = time.perf_counter() - begun
    inside = re.search(r" shards, ([\d.]+) s, ", done.stdout)
    if done.returncode or not inside:
        sys.exit(f"{flags} failed:\n{done.stdout}{done.stderr[-3000:]}")
    manifest = (output / "manifest.json").read_bytes()
    shutil.rmtree(output)
    return whole, float(inside[1]), manifest


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1150)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scratch", help="a directory on the disk to measure (default: that of temporary files)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as name:
        raw = Path(name) / "raw"
        write_raw(raw, options.megabytes * 10**6)
        megabytes = (raw / TRAIN_TAR).stat().st_size / 1e6
        runs = [
            {runner: run(flags, raw, Path(name) / "out") for runner, flags in RUNNERS.items()}
            for _ in range(options.rounds)
        ]
    assert len({manifest for found in runs for _, _, manifest in found.values()}) == 1
    load = os.getloadavg()[0]
    print(f"{megabytes:,.0f} MB, {options.rounds} rounds, {os.cpu_count()} cores, load {load:.1f}; medians\n")
    print("| runner | whole, s | MB/s | inside, s | MB/s |\n" + "|" + " --- |" * 5)
    for runner in RUNNERS:
        whole, inside = (statistics.median(found[runner][i] for found in runs) for i in (0, 1))
        print(f"| {runner} | {whole:.1f} | {megabytes / whole:.0f} | {inside:.1f} | {megabytes / inside:.0f} |")


if __name__ == "__main__":
    main()
