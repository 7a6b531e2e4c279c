"""Tables that pandas, polars, DuckDB and Hugging Face's datasets write: values after conversion, memory, throughput.

Needs packages beyond constraints.txt: pip install pandas polars duckdb datasets. Usage:

    python tests/benchmarks/bench_tables.py values           # converts each file and compares every value
    python tests/benchmarks/bench_tables.py memory 3 6       # GB of Parquet; prints the largest resident size
    python tests/benchmarks/bench_tables.py throughput 100000 7 PYTHON_WITH_TFDS_AND_DATASETS PYTHON_WITH_LITDATA

throughput: so many rows of 14 columns; each round converts them once by each contender, in a process of its own. Prints
medians, and the median and the quartiles of the ratios within rounds: the others' time over ours.
"""

import multiprocessing
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
from pyarrow import parquet

from pipeline.shards.example_decoding import decode_example
from pipeline.shards.frames import read_frames

ROWS = 10_000


def columns():
    rng = np.random.default_rng(0)
    return {
        "id": list(range(ROWS)),
        "price": rng.normal(size=ROWS).astype(np.float32).tolist(),
        "rooms": rng.integers(0, 9, ROWS).tolist(),
        "city": rng.choice(["Rome", "Oslo", "Paris"], ROWS).tolist(),
        "note": [f"Käse {i}" for i in range(ROWS)],
    }


def by_pandas(path):
    import pandas as pd

    pd.DataFrame(columns()).to_parquet(path, compression="zstd")
    return pd.read_parquet(path).to_dict("list")


def by_polars(path):
    import polars as pl

    pl.DataFrame(columns()).write_parquet(path, compression="zstd", row_group_size=3000)
    return pl.read_parquet(path).to_dict(as_series=False)


def by_duckdb(path):
    import duckdb

    duckdb.from_arrow(pa.table(columns())).write_parquet(str(path), compression="zstd")
    return {name: values.tolist() for name, values in duckdb.read_parquet(str(path)).fetchnumpy().items()}


def by_datasets(path):
    import datasets

    classes = datasets.ClassLabel(names=["Rome", "Oslo", "Paris"])
    table = columns() | {"city": [classes.str2int(city) for city in columns()["city"]]}
    features = datasets.Features(
        id=datasets.Value("int64"),
        price=datasets.Value("float32"),
        rooms=datasets.Value("int64"),
        city=classes,
        note=datasets.Value("string"),
    )
    datasets.Dataset.from_dict(table, features).to_parquet(path)
    return datasets.Dataset.from_parquet(str(path))[:]


def by_pyarrow(path):
    encodings = {"id": "DELTA_BINARY_PACKED", "note": "DELTA_BYTE_ARRAY", "price": "BYTE_STREAM_SPLIT"}
    parquet.write_table(
        pa.table(columns()), path, use_dictionary=["city"], column_encoding=encodings, compression="zstd"
    )
    return parquet.read_table(path).to_pydict()


WRITERS = {write.__name__: write for write in (by_pandas, by_polars, by_duckdb, by_datasets, by_pyarrow)}


def convert(raw, out, *flags):
    command = [sys.executable, "-m", "converters.table_to_gcs", f"--raw-data-dir={raw}", f"--output={out}", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def values():
    for name, write in WRITERS.items():
        with tempfile.TemporaryDirectory() as scratch:
            raw, out = Path(scratch, "raw"), Path(scratch, "out")
            raw.mkdir()
            expected = write(raw / "train.parquet")
            convert(raw, out, "--columns=note=text")
            records = [
                decode_example(frame.payload)
                for path in out.glob("train-*")
                for frame in read_frames([path.read_bytes()], None)
            ]
            records.sort(key=lambda record: record["id"])
            cities = expected["city"]
            if isinstance(cities[0], str):
                cities = [sorted(set(cities)).index(city) for city in cities]
            notes = [note.encode() for note in expected["note"]]
            for key, wanted in {**expected, "city": cities, "note": notes}.items():
                assert [record[key][0] for record in records] == list(wanted), (name, key)
            print(f"{name}: {ROWS:,} rows of {len(expected)} columns are equal", flush=True)


def write_large(raw, gigabytes):
    """Numbers, texts and blobs of 3 kB, in row groups of 100,000 rows, the usual size of other writers."""
    path, rng, group = raw / "train.parquet", np.random.default_rng(0), 100_000
    schema = pa.schema(
        [("x", pa.list_(pa.float32(), 16)), ("n", pa.int64()), ("text", pa.string()), ("blob", pa.binary())]
    )
    with parquet.ParquetWriter(path, schema, compression="none") as writer:
        while path.stat().st_size < gigabytes * 1e9:
            numbers = pa.FixedSizeListArray.from_arrays(rng.normal(size=16 * group).astype(np.float32), 16)
            texts = pa.array([f"row {i} of many" for i in range(group)])
            blobs = pa.array([rng.bytes(3000) for _ in range(group)], pa.binary())
            ids = pa.array(rng.integers(0, 2**40, group))
            writer.write_table(pa.table([numbers, ids, texts, blobs], schema), row_group_size=group)


def memory(sizes):
    for gigabytes in sizes:
        with tempfile.TemporaryDirectory() as scratch:
            raw, out = Path(scratch, "raw"), Path(scratch, "out")
            raw.mkdir()
            writer = multiprocessing.get_context("spawn").Process(target=write_large, args=(raw, gigabytes))
            writer.start()
            writer.join()
            begin = time.monotonic()
            command = [sys.executable, "-m", "converters.table_to_gcs", f"--raw-data-dir={raw}", f"--output={out}"]
            done, largest = subprocess.Popen([*command, "--columns=text=text"]), 0
            while done.poll() is None:
                largest = max(largest, psutil.Process(done.pid).memory_info().rss)
                time.sleep(0.05)
            size = (raw / "train.parquet").stat().st_size / 1e9
            spent = f"exit {done.returncode}, {time.monotonic() - begin:.0f} s, at most {largest / 2**20:.0f} MiB"
            print(f"{size:.2f} GB: {spent}", flush=True)


def write_mixed(path, rows):
    """Eight floats, four integers, a class and a text."""
    rng = np.random.default_rng(0)
    table = {f"x{i}": rng.normal(size=rows).astype(np.float32) for i in range(8)}
    table |= {f"n{i}": rng.integers(0, 1000, rows) for i in range(4)}
    table |= {"city": rng.choice(["Rome", "Oslo", "Paris"], rows), "note": [f"row {i} of many" for i in range(rows)]}
    parquet.write_table(pa.table(table), path, row_group_size=10_000)


def took(command):
    """Seconds of the clock and of the CPU, of the process and of those that it started and waited for."""
    os.sync()
    begun, before = time.perf_counter(), os.times()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wall, after = time.perf_counter() - begun, os.times()
    assert done.returncode == 0, done.stderr[-3000:]
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return (wall, cpu), done.stdout


def throughput(rows, rounds, tfds_python, litdata_python):
    with tempfile.TemporaryDirectory() as scratch:
        raw, out = Path(scratch, "raw"), Path(scratch, "out")
        raw.mkdir()
        write_mixed(raw / "train.parquet", rows)
        others = {"tfds": tfds_python, "litdata": litdata_python}
        program = str(Path(__file__).with_name("table_contenders.py"))
        ours = ["-m", "converters.table_to_gcs", f"--raw-data-dir={raw}", f"--output={out}", "--columns=note=text"]
        commands = {"infeed": [sys.executable, *ours]}
        commands |= {name: [python, program, name, f"{raw}/train.parquet", out] for name, python in others.items()}
        found = {name: [] for name in commands}
        for number in range(rounds):
            for name in sorted(commands, key=lambda name: (list(commands).index(name) + number) % len(commands)):
                seconds, printed = took(commands[name])
                assert f"{rows:,} records" in printed or printed.split()[-1] == str(rows), printed
                found[name].append(seconds)
                shutil.rmtree(out)
        print(f"{rows:,} rows, {rounds} rounds\n\n| | wall s | CPU s | wall over ours | CPU over ours |")
        print("| --- | --- | --- | --- | --- |")
        for name, runs in found.items():
            cells = [f"{statistics.median(each):.1f}" for each in zip(*runs, strict=True)]
            for i in range(2):
                ratios = [run[i] / mine[i] for run, mine in zip(runs, found["infeed"], strict=True)]
                low, middle, high = statistics.quantiles(ratios, n=4)
                cells.append(f"{middle:.2f} ({low:.2f}, {high:.2f})")
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1] == "values":
        values()
    elif sys.argv[1] == "memory":
        memory(map(float, sys.argv[2:]))
    else:
        throughput(int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
