"""How others write shards of a Parquet table: a contender of bench_tables, in a process of its own.

    python -m tests.benchmarks.table_contenders {tfds,litdata} train.parquet DIRECTORY

Prints how many records it wrote."""

import sys
from pathlib import Path


def by_tfds(table: str, output: str) -> int:
    """Hugging Face's datasets reads the rows; TFDS shuffles them and writes TFRecords, as it does for any iterable."""
    import datasets
    import numpy as np
    import tensorflow_datasets as tfds

    rows = datasets.load_dataset("parquet", data_files=table, split="train", cache_dir=f"{output}/cache")
    kinds = {"float32": np.float32, "int64": np.int64, "string": tfds.features.Text()}
    features = {name: kinds[feature.dtype] for name, feature in rows.features.items()}
    features["city"] = tfds.features.ClassLabel(names=sorted(rows.unique("city")))
    made = tfds.dataset_builders.store_as_tfds_dataset(
        "table", "1.0.0", tfds.features.FeaturesDict(features), {"train": enumerate(rows)}, data_dir=output
    )
    return made.info.splits["train"].num_examples


def rows_of(table):
    """The rows of a table as litData's optimize calls it in its workers."""
    from pyarrow import parquet

    for batch in parquet.ParquetFile(table).iter_batches(10_000):
        yield from batch.to_pylist()


def by_litdata(table: str, output: str) -> int:
    """litData writes chunks of 64 MB, in one process, in the order of the table."""
    import litdata

    options = {"num_workers": 1, "chunk_bytes": "64MB", "verbose": False}
    litdata.optimize(rows_of, [table], output, **options)
    return len(litdata.StreamingDataset(output))


if __name__ == "__main__":
    contender, table, output = sys.argv[1:]
    print({"tfds": by_tfds, "litdata": by_litdata}[contender](table, str(Path(output).resolve())))
