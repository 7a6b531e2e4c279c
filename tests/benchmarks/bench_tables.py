"""A Parquet table to shards: ours, Hugging Face's datasets with TFDS, and litData.

    python -m tests.benchmarks.bench_tables ROWS ROUNDS PYTHON_WITH_TFDS_AND_DATASETS PYTHON_WITH_LITDATA

Each round converts the rows, of 14 columns, once by each contender, in a process of its own. Prints medians, and of the
others' time over ours within rounds the median and the quartiles."""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from tests.benchmarks.harness import module, run, spread


def write_mixed(path: Path, rows: int) -> None:
    """Eight floats, four integers, a class and a text."""
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=rows).astype(np.float32) for i in range(8)}
    table |= {f"n{i}": rng.integers(0, 1000, rows) for i in range(4)}
    table |= {"city": rng.choice(["Rome", "Oslo", "Paris"], rows), "note": [f"row {i} of many" for i in range(rows)]}
    parquet.write_table(pa.table(table), path, row_group_size=10_000)


def main(rows: int, rounds: int, tfds_python: str, litdata_python: str) -> None:
    """Prints the table."""
    with tempfile.TemporaryDirectory() as scratch:
        raw, out = Path(scratch, "raw"), Path(scratch, "out")
        raw.mkdir()
        write_mixed(raw / "train.parquet", rows)
        ours = ["-m", "converters.table_to_gcs", f"--raw-data-dir={raw}", f"--output={out}", "--columns=note=text"]
        commands = {"infeed": [sys.executable, *ours]}
        for name, python in (("tfds", tfds_python), ("litdata", litdata_python)):
            commands[name] = [python, *module("table_contenders"), name, f"{raw}/train.parquet", str(out)]
        measured = {name: [] for name in commands}
        names = list(commands)
        for number in range(rounds):
            for name in names[number % 3 :] + names[: number % 3]:
                printed, took = run(commands[name])
                assert f"{rows:,} records" in printed or printed.split()[-1] == str(rows), printed
                measured[name].append(took)
                shutil.rmtree(out)
    print(f"{rows:,} rows, {rounds} rounds\n\n| | CPU s | wall s | CPU over ours | wall over ours |")
    print("|" + " --- |" * 5)
    for name, runs in measured.items():
        cells = [f"{statistics.median(each):.1f}" for each in zip(*runs, strict=True)]
        both = list(zip(runs, measured["infeed"], strict=True))
        cells += [spread([theirs[i] / ours[i] for theirs, ours in both]) for i in range(2)]
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5])
