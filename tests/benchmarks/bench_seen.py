"""What `trainer.seen` costs on as many records as ImageNet has: CPU seconds and memory of the whole command.

    python tests/benchmarks/bench_seen.py [DIR]

1,281,167 small records in 1,165 shards, a batch of 1,024, and a metrics.jsonl of 450,000 steps. The order does not
depend on the size of records, so small ones do."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT)]

RECORDS, SHARD_RECORDS, BATCH, STEPS = 1_281_167, 1_100, 1_024, 450_000


def write_data(directory: Path) -> None:
    """A dataset with a label and a name in each record."""
    from pipeline.shards.example import encode_example
    from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, update_manifest
    from pipeline.shards.naming import index_file, shard_file
    from pipeline.shards.record import crc32c, frame
    from pipeline.shards.schema import Feature, Schema
    from pipeline.shards.split_index import encode_index
    from pipeline.storage.schemes import open_storage

    schema = Schema("numbers", {"file_name": Feature("bytes", content="text"), "label": Feature("int64")})
    storage, entries, rows = open_storage(str(directory)), [], []
    shards = -(-RECORDS // SHARD_RECORDS)
    for number, first in enumerate(range(0, RECORDS, SHARD_RECORDS)):
        ids = range(first, min(first + SHARD_RECORDS, RECORDS))
        payloads = [encode_example(schema, {"file_name": b"%d.jpg" % i, "label": i % 1000}) for i in ids]
        rows += [(len(payload), crc32c(payload)) for payload in payloads]
        data, name = b"".join(map(frame, payloads)), shard_file("train", number, shards)
        (directory / name).write_bytes(data)
        entries.append(ShardEntry(name, len(payloads), len(data), crc32c(data)))
    index = encode_index(np.array(rows, np.uint32))
    with storage.publish(f"{directory}/{index_file('train')}") as sink:
        sink.write(index)
    split = SplitEntry(tuple(entries), crc32c(index), "0" * 32, "0" * 32, seed=0)
    update_manifest(storage, str(directory), lambda _: Manifest("numbers", schema, {"train": split}))


def write_run(data: Path, workdir: Path) -> None:
    """What a run of these steps leaves in its work directory, except checkpoints."""
    from pipeline.datasets import train_dataset
    from trainer.history.segments import Start, append

    source = train_dataset(str(data), global_batch=BATCH, keys=["label"], epochs="span")
    position = source.state(source.start)
    append(str(workdir), Start(0, "2026-11-23T12:00:00+00:00", position, source.info.provenance, {}, None, {}, "none"))
    with (workdir / "train").joinpath("metrics.jsonl").open("w") as file:
        for step in range(1, STEPS + 1):
            file.write(f'{{"step": {step}, "loss": {1 / step:.9g}, "accuracy": 0.5, "grad_norm": 1.25}}\n')


def measured(workdir: Path, *options: str) -> tuple[float, float, int, str]:
    """(CPU seconds, seconds, bytes of memory, what it printed) of the command."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "trainer.seen", str(workdir), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, text=True)
    assert process.stdout
    printed = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return usage.ru_utime + usage.ru_stime, time.perf_counter() - began, usage.ru_maxrss * 1024, printed


def write(directory: Path) -> None:
    """Data and run, in a process of its own: the memory of a process that this one starts is at least its own."""
    (directory / "data").mkdir(parents=True)
    (directory / "run/train").mkdir(parents=True)
    write_data(directory / "data")
    write_run(directory / "data", directory / "run")


def main() -> None:
    if sys.argv[1:2] == ["--write"]:
        write(Path(sys.argv[2]))
        return
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(sys.argv[1] if len(sys.argv) > 1 else scratch)
        if not (directory / "data/manifest.json").exists():
            subprocess.run([sys.executable, __file__, "--write", str(directory)], check=True)
        for options in (["--step=440000"], ["--step=440000", "--json"], ["--step=440000", "--to=440099", "--json"]):
            cpu, seconds, memory, printed = measured(directory / "run", *options)
            lines = [json.loads(line) for line in printed.splitlines()] if "--json" in options else []
            assert all(line["key"] == f"{line['index']}.jpg" for line in lines)
            print(f"{' '.join(options)}: {cpu:.2f} CPU s, {seconds:.2f} s, {memory / 1e6:.0f} MB; {len(lines)} lines")


if __name__ == "__main__":
    main()
