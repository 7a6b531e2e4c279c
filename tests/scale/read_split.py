"""Opens a split of sparse_split, trains and evaluates on it without a model, and prints what that takes, as JSON.

python tests/scale/read_split.py DIR [TRAINING_BATCHES [EVALUATED]]. Private memory is that which no file backs, and what was read of files; in MB."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.spec import ArraySpec

BATCH = 1024


@dataclass(frozen=True)
class Length:
    """The number of bytes of a record."""

    reads = ("record",)

    def output_spec(self, specs):
        return {"length": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {"length": np.int32(len(features["record"]))}


def memory() -> dict[str, float]:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    unique = kilobytes["Private_Clean"] + kilobytes["Private_Dirty"]
    read = Path("/proc/self/io").read_text().split()[1]
    return {
        "read": int(read) / 1e6,
        "private": kilobytes["Anonymous"] / 1e3,
        "uss": unique / 1e3,
        "rss": kilobytes["Rss"] / 1e3,
    }


def main(directory: str, batches: int = 0, evaluated: int = 0) -> None:
    began = time.perf_counter()
    seen = dict[str, object]()

    def note(name: str) -> None:
        nonlocal began
        seconds = round(time.perf_counter() - began, 3)
        seen[name] = {"seconds": seconds, **memory()}
        began = time.perf_counter()

    note("before")
    dataset = open_dataset(directory, "train")
    note("opened")
    source = dataset.source
    assert isinstance(source, IndexedRecords)
    source.index.locate(np.arange(0, dataset.num_records, 4096))
    note("located")
    options = {"global_batch": BATCH, "keys": ["length"], "ops": [Length()], "workers": 0}
    if batches:
        made = iter(train_dataset(dataset, **options))
        for number in range(batches):
            next(made)
            if not number:
                note("first batch")
        made.close()
        note("trained")
    if evaluated:
        part = f"[{dataset.num_records - evaluated}:]"
        data = eval_dataset(dataset, part, **options)
        crc = sum(int(batch["_crc"].sum(dtype=np.uint64)) for batch in data) % 2**32
        assert crc == data.info.expected_crc
        note("evaluated a part")
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
