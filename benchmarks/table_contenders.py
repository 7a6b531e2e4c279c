"""What bench_tables times, each in a process of its own; prints the peak of the largest process.

python -m benchmarks.table_contenders infeed|script RAW OUTPUT"""

import resource
import subprocess
import sys
from pathlib import Path


def convert(raw: Path, output: Path) -> None:
    """infeed's command in one process."""
    command = [sys.executable, "-m", "converters.table_to_gcs", "--local-processes=1"]
    subprocess.run([*command, f"--raw-data-dir={raw}", f"--output={output}"], check=True)


def script(raw: Path, output: Path) -> None:
    """The loop that people write: no shuffle, no index, no check of a cell, no resume."""
    import pyarrow as pa
    import tensorflow as tf
    from pyarrow import csv, json, parquet

    (path,) = raw.iterdir()
    read = {".csv": csv.read_csv, ".jsonl": json.read_json, ".parquet": parquet.read_table}
    table = read[path.suffix](str(path))
    output.mkdir()

    def feature(cell: object) -> tf.train.Feature:
        if isinstance(cell, str):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[cell.encode()]))
        if isinstance(cell, int):
            return tf.train.Feature(int64_list=tf.train.Int64List(value=[cell]))
        return tf.train.Feature(float_list=tf.train.FloatList(value=[cell]))

    with tf.io.TFRecordWriter(str(output / "train.tfrecord")) as writer:
        for batch in table.to_batches(max_chunksize=4096):
            assert isinstance(batch, pa.RecordBatch)
            for row in batch.to_pylist():
                features = {name: feature(cell) for name, cell in row.items()}
                example = tf.train.Example(features=tf.train.Features(feature=features))
                writer.write(example.SerializeToString())


def main() -> None:
    """Runs one and prints the MiB that its largest process had."""
    name, raw, output = sys.argv[1:]
    {"infeed": convert, "script": script}[name](Path(raw), Path(output))
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(max(usage.ru_maxrss for usage in usages) // 1024)


if __name__ == "__main__":
    main()
