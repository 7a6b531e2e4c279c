"""Reading shards from a bucket with 50 ms to the first byte and 80 MB/s a stream: ours against TFRecordDataset.

    python tests/benchmarks/bench_gcs_reading.py [--megabytes 1600] [--rounds 5]

Each contender runs in a process of its own, in turn, for as many rounds; prints MB/s, requests, bytes a record and the
peak memory over that of the bare imports. Records are 110 KB of noise, as photos are, in shards of 100 MB; nothing is
decoded. All that shuffle mix 1,024 records."""

# ruff: noqa: E402 (a script: it finds its packages itself)

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path[:0] = [str(Path(__file__).parents[1] / "servers"), str(Path(__file__).parents[2])]

from fake_gcs.server import start

from pipeline.shards.example import encode_example
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
from pipeline.shards.naming import index_file, shard_file
from pipeline.shards.record import crc32c, frame
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.split_index import encode_index
from pipeline.storage.schemes import open_storage

RECORD_BYTES, SHARD_BYTES, BATCH, WINDOW = 110_000, 10**8, 64, 1024
FIRST_BYTE_SECONDS, BYTES_PER_SECOND = 0.05, 80e6
SCHEMA = Schema("noise", {"image/encoded": Feature("bytes"), "label": Feature("int64")})

OURS = """
from pipeline.datasets import eval_dataset, train_dataset
peak_of_imports()
if contender == "ours, evaluation":
    source = eval_dataset(directory, "train", global_batch=BATCH, keys=("label",))
else:
    order = {"block_records": 10, "window_records": WINDOW // 64}  # in 64 streams: a block of 1.1 MB, as by default
    source = train_dataset(directory, "train", global_batch=BATCH, keys=("label",), **order)
batches = source.batches()
begin()
for _ in range(source.num_records // BATCH):
    count(len(next(batches)["label"]))
batches.close()
"""
TENSORFLOW = """
import tensorflow as tf
peak_of_imports()
files = tf.io.gfile.glob(directory + "/train-*")
begin()
cycle = int(contender.rsplit(" ", 1)[1])
dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).interleave(
    tf.data.TFRecordDataset, cycle_length=cycle, num_parallel_calls=cycle, deterministic=False
).shuffle(WINDOW).batch(BATCH, drop_remainder=True).prefetch(4)
for batch in dataset:
    count(int(batch.shape[0]))
"""
COMMON = """
import json, resource, sys, time
contender, directory, BATCH, WINDOW = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
total = 0
def rss(): return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
def peak_of_imports():
    global bare
    bare = rss()
def begin():
    global begun
    begun = time.perf_counter()
def count(n):
    global total
    total += n
"""
REPORT = """
print(json.dumps({"records": total, "seconds": time.perf_counter() - begun, "peak": rss() - bare}))
sys.stdout.flush()
import os
os._exit(0)
"""


def write_shards(directory: str, num_records: int) -> None:
    """A small converted dataset of incompressible records."""
    storage, entries, rows = open_storage(directory), [], []
    shards = max(1, num_records * RECORD_BYTES // SHARD_BYTES)
    for shard in range(shards):
        frames = []
        for i in range(shard, num_records, shards):
            payload = encode_example(SCHEMA, {"image/encoded": os.urandom(RECORD_BYTES), "label": i})
            rows.append((len(payload), crc32c(payload)))
            frames.append(frame(payload))
        data, name = b"".join(frames), shard_file("train", shard, shards)
        with storage.publish(f"{directory}/{name}") as sink:
            sink.write(data)
        entries.append(ShardEntry(name, len(frames), len(data), crc32c(data)))
    index = encode_index(np.array(rows, np.uint32))
    with storage.publish(f"{directory}/{index_file('train')}") as sink:
        sink.write(index)
    split = SplitEntry(tuple(entries), crc32c(index), "0" * 32, "0" * 32, seed=0)
    update_manifest(storage, directory, lambda _: Manifest("noise", SCHEMA, {"train": split}))


def run(server, contender: str, directory: str) -> dict:
    """One contender's numbers, in a process of its own."""
    server.reset()
    server.slow_down(first_byte_seconds=FIRST_BYTE_SECONDS, bytes_per_second=BYTES_PER_SECOND)
    program = COMMON + (OURS if contender.startswith("ours") else TENSORFLOW) + REPORT
    command = [sys.executable, "-c", program, contender, directory, str(BATCH), str(WINDOW)]
    root = str(Path(__file__).parents[2])
    env = os.environ | server.env | {"PYTHONPATH": root, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, timeout=600)
    found = json.loads(done.stdout.splitlines()[-1])
    media = [
        request for request in server.requests("-of-") if request.method == "GET" and request.response_bytes > 2000
    ]
    found["requests"] = len(media)
    found["bytes a record"] = sum(request.response_bytes for request in media) / found["records"]
    found["MB/s"] = found["records"] * RECORD_BYTES / found["seconds"] / 1e6
    return found


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1600)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    contenders = ["ours, training", "ours, evaluation", *(f"TFRecordDataset, interleave {n}" for n in (4, 8, 16))]
    with tempfile.TemporaryDirectory() as scratch, start(Path(scratch)) as server:
        server.make_bucket("bench")
        os.environ.update(server.env)
        directory = "gs://bench/noise"
        write_shards(directory, options.megabytes * 10**6 // RECORD_BYTES)
        rounds = [{name: run(server, name, directory) for name in contenders} for _ in range(options.rounds)]
    print(f"| reader | MB/s (least, most) | GETs | bytes a record | MiB over the imports |\n|{' --- |' * 5}")
    for name in contenders:
        speeds = sorted(found[name]["MB/s"] for found in rounds)
        last = rounds[-1][name]
        print(
            f"| {name} | {statistics.median(speeds):.0f} ({speeds[0]:.0f}, {speeds[-1]:.0f}) | {last['requests']} | "
            f"{last['bytes a record']:,.0f} | {max(found[name]['peak'] for found in rounds) / 2**20:.0f} |"
        )


if __name__ == "__main__":
    main()
