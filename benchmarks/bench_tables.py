"""Tables to shards: CPU time per row of all processes, beyond that of a conversion of 100 rows, and the peak of the
largest process; beside the loop that people write with pyarrow and tf.train.Example.

    python -m benchmarks.bench_tables [--rows 200000,2000000] [--tables csv,jsonl,parquet,floats] [--rounds 3]

Each round makes every table of every size once. The script runs at the smallest size only. In --directory,
10 million rows take 4 GB."""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from benchmarks.harness import load, module, run, spread

FEW = 100
ROWS_AT_ONCE = 100_000
WORDS = np.array([f"w{number}" for number in range(50)])


def short(rows: range, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Six short columns: integers, floats and categories."""
    numbers = np.arange(rows.start, rows.stop)
    return {
        "a": numbers % 977,
        "b": rng.random(len(rows)).round(6),
        "c": rng.random(len(rows)).round(3),
        "d": WORDS[numbers % 50],
        "e": numbers * 7 % 1000,
        "f": WORDS[numbers % 5],
    }


def mixed(rows: range, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """14 columns: as above, and eight more."""
    more = {f"float{n}": rng.normal(size=len(rows)) for n in range(4)}
    more |= {f"int{n}": rng.integers(0, 10**6, len(rows)) for n in range(2)}
    texts = {
        f"text{n}": np.char.add("text ", rng.integers(0, 10**9, len(rows)).astype(str))
        for n in range(2)
    }
    return {**short(rows, rng), **more, **texts}


def floats(rows: range, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """80 columns of floats with up to 17 digits."""
    return {f"x{n}": rng.normal(size=len(rows)) for n in range(80)}


TABLES = {
    "csv": (short, "csv"),
    "jsonl": (short, "jsonl"),
    "parquet": (mixed, "parquet"),
    "floats": (floats, "csv"),
}


def write(name: str, rows: int, directory: Path) -> Path:
    """The directory with a table of so many rows."""
    make, suffix = TABLES[name]
    raw = directory / f"{name}-{rows}"
    raw.mkdir(exist_ok=True)
    path, rng = raw / f"train.{suffix}", np.random.default_rng(0)
    if path.exists():
        return raw
    parts = (
        pa.table(make(range(begin, min(begin + ROWS_AT_ONCE, rows)), rng))
        for begin in range(0, rows, ROWS_AT_ONCE)
    )
    first = next(parts)
    if suffix == "parquet":
        with parquet.ParquetWriter(path, first.schema) as writer:
            for part in (first, *parts):
                writer.write_table(part)
        return raw
    with path.open("wb") as sink:
        for number, part in enumerate((first, *parts)):
            if suffix == "csv":
                csv.write_csv(part, sink, csv.WriteOptions(include_header=not number))
            else:
                columns = zip(*(column.to_pylist() for column in part.columns), strict=True)
                lines = (json_line(part.column_names, row) for row in columns)
                sink.write("".join(lines).encode())
    return raw


def json_line(names: list[str], row: tuple[object, ...]) -> str:
    """One object."""
    return json.dumps(dict(zip(names, row, strict=True))) + "\n"


def convert(contender: str, raw: Path, directory: Path) -> tuple[float, int]:
    """CPU seconds, and MiB of the largest process."""
    output = directory / "output"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, *module("table_contenders"), contender, str(raw), str(output)]
    printed, took = run(command)
    return took.cpu, int(printed.split()[-1])


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="200000,2000000")
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.mkdtemp()))
    options = parser.parse_args()
    sizes = [*map(int, options.rows.split(","))]
    print(load())
    print(
        "| table | rows | us a row: median (quartiles) | MiB | script over ours |\n"
        + "|"
        + " --- |" * 5
    )
    for name in options.tables.split(","):
        few = write(name, FEW, options.directory)
        starts = {
            each: [convert(each, few, options.directory)[0] for _ in range(options.rounds)]
            for each in ("infeed", "script")
        }
        start = {each: statistics.median(seconds) for each, seconds in starts.items()}
        for rows in sizes:
            raw = write(name, rows, options.directory)
            times, ratios, peaks = list[float](), list[float](), list[int]()
            for _ in range(options.rounds):
                cpu, peak = convert("infeed", raw, options.directory)
                times.append((cpu - start["infeed"]) / (rows - FEW) * 1e6)
                peaks.append(peak)
                if rows == min(sizes):
                    cpu, _ = convert("script", raw, options.directory)
                    ratios.append((cpu - start["script"]) / (rows - FEW) * 1e6 / times[-1])
            ratio = spread(ratios) if ratios else ""
            print(
                f"| {name} | {rows:,} | {spread(times)} | {statistics.median(peaks):.0f} | {ratio} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
