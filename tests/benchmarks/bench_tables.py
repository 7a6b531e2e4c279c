"""Tables that pandas, polars, DuckDB and Hugging Face's datasets write: values after conversion, memory, throughput.

Needs packages beyond constraints.txt: pip install pandas polars duckdb datasets. Usage:

    python tests/benchmarks/bench_tables.py values           # converts each file and compares every value
    python tests/benchmarks/bench_tables.py memory 3 6       # GB of Parquet; prints the largest resident size
"""

import multiprocessing
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


if __name__ == "__main__":
    values() if sys.argv[1] == "values" else memory(map(float, sys.argv[2:]))
