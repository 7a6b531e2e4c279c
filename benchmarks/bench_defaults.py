"""All defaults on a host with an accelerator and many cores, in a quarter of an hour.

    python -m benchmarks.bench_defaults [input] [resnet50] [fashion] [--fashion SHARDS] [--seconds 10]

input: training batches alone, on 1, 4, 8 and 16 of the host's cores. resnet50: training from shards and, beside it, from
memory. fashion: Fashion-MNIST from SHARDS, as `infeed convert idx` makes them, to the accuracy of a ResNet-18, with an
exact evaluation, for three seeds. Each measurement is a process of its own. Prints Markdown."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import accelerator, bench_same_work
from benchmarks.harness import ROOT, module

RECIPE = "benchmarks.fashion_resnet:Config"
PARTS = ("input", "resnet50", "fashion")
EVERY_CORE = ("photographs, bilinear", "photographs, bicubic", "JPEG of 32 pixels, decoded")


def input_alone(seconds: float) -> None:
    """A row per number of cores and kind of record."""
    print("| records | cores | records/s | CPU us per record |\n| --- | --- | --- | --- |")
    most = os.cpu_count() or 1
    for kind in EVERY_CORE:
        with tempfile.TemporaryDirectory() as data:
            bench_same_work.write(bench_same_work.KINDS[kind], data)
            for cores in [1, 4, 8, 16] if kind == EVERY_CORE[0] else [16]:
                of_cores = ["taskset", "-c", f"0-{min(cores, most) - 1}"]
                measured = [f"--seconds={seconds}", "--measure", "infeed", data]
                command = [*of_cores, sys.executable, *module("bench_same_work"), kind, *measured]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
                cpu, rate = json.loads(done.stdout.splitlines()[-1])
                print(f"| {kind} | {cores} | {rate:,.0f} | {cpu:,.0f} |", flush=True)


def resnet50(options: argparse.Namespace) -> None:
    """Rows of accelerator's table."""
    columns = accelerator.COLUMNS
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    with tempfile.TemporaryDirectory() as data:
        accelerator.write_shards(Path(data), 8000, 400, copies=4)
        for source, k, batch in (("shards", 10, 256), ("shards", 100, 1024), ("memory", 10, 256)):
            row = accelerator.Row("ResNet-50", source, k, batch)
            print(accelerator.line(row, accelerator.in_process(row, data, options)), flush=True)


def fashion(shards: str) -> None:
    """A row per seed: the seconds of the command, and its last lines."""
    for seed in range(3):
        with tempfile.TemporaryDirectory() as workdir:
            command = [sys.executable, "-m", "trainer", RECIPE, f"--data-dir={shards}"]
            began = time.perf_counter()
            done = subprocess.run(
                [*command, f"--workdir={workdir}", f"--seed={seed}"],
                check=False,
                capture_output=True,
                text=True,
                cwd=ROOT,
            )
            print(f"seed {seed}: {time.perf_counter() - began:.1f} s, exit {done.returncode}")
            print("\n".join([*done.stderr.splitlines()[-12:], *done.stdout.splitlines()[-6:]]))
            sys.stdout.flush()


def main() -> None:
    """Prints what was asked for, in turn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of: {', '.join(PARTS)}")
    parser.add_argument("--fashion")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--peak-tflops", type=float)
    options = parser.parse_args()
    parts = options.parts or PARTS
    if "input" in parts:
        input_alone(options.seconds)
    if "resnet50" in parts:
        resnet50(options)
    if "fashion" in parts and options.fashion:
        fashion(options.fashion)


if __name__ == "__main__":
    main()
