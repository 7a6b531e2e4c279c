"""One contender of bench_reading, in a process of its own: reads all records once, then says what that took.

    python -m benchmarks.reading_contenders NAME DIR

Each imports what it needs, and only then starts its clock, before the first file is opened. The last line is JSON:
records, wall seconds, CPU seconds in programs and in the kernel (of the process and of its workers), peak MiB of the
process over its imports. Nothing is decoded; batches are lists of bytes or, in tf.data, tensors of strings, so that
its iterator costs little. BATCH rows each, the rest dropped."""

import collections
import functools
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["BATCH", "CONTENDERS", "Contender", "Run", "infeed", "measured", "training_order"]

BATCH, AHEAD_BYTES = 256, 256 * 10**6
Run = Callable[[], Iterator[int]]  # yields how many records each batch has


class Contender(NamedTuple):
    """What it reads, what it imports, and how to make ready: imports, then the function that is measured."""

    format: str
    imports: str
    prepare: Callable[[Path], Run]
    every_round: bool = (
        False  # the others only in the first ones: they are slow, or of little interest
    )


def training_order(
    records: Any, block_records: int | None = None, window_records: int | None = None
) -> Iterator[Any]:
    """The numbers of the records of each batch of an epoch. Sizes are by default those of a training run."""
    from pipeline.orders.shuffle import default_block_records
    from tests.making.usual_order import usual_order

    mean = records.info.num_bytes / records.num_records
    block = block_records or default_block_records(mean, records.num_records)
    order = usual_order(
        records.num_records, BATCH, block_records=block, window_records=window_records
    )
    positions = (order.advance(order.start, step) for step in range(order.steps_per_epoch))
    return (order.rows(position, [range(BATCH)]).record_ids for position in positions)


def infeed(directory: Path | str, order: Callable[[Any], Iterator[Any]] = training_order) -> Run:
    """What an Input reads, in the same two threads, without its decoding: bytes, each proven against the index."""
    from pipeline.background import Background
    from pipeline.sources.open_dataset import open_dataset
    from pipeline.sources.records import intact, weighed

    def run() -> Iterator[int]:
        records = open_dataset(str(directory), "train")
        reading = records.read(weighed(records, order(records)), AHEAD_BYTES)
        batches = ([intact(record)[0] for record in batch] for batch in reading)
        for batch in Background(
            batches,
            limit=lambda: AHEAD_BYTES - reading.held_bytes,
            cost=lambda batch: sum(map(len, batch)),
        ):
            yield len(batch)

    return run


def bare(directory: Path) -> Run:
    """What cannot be saved: pread and crc32c of each payload, all places known, a batch kept, nothing else."""
    import google_crc32c
    import numpy as np

    from pipeline.shards.frames import HEADER_BYTES
    from pipeline.sources.open_dataset import open_dataset

    records = open_dataset(str(directory), "train")
    where = records.source.index.locate(np.random.default_rng(0).permutation(records.num_records))
    files = [os.open(directory / shard.file, os.O_RDONLY) for shard in records.source.entry.shards]
    columns = (where.shard, where.offset + HEADER_BYTES, where.length, where.crc)
    places = list(zip(*(column.tolist() for column in columns), strict=True))

    def run() -> Iterator[int]:
        kept = collections.deque(maxlen=BATCH)
        for shard, offset, size, crc in places:
            kept.append(os.pread(files[shard], size, offset))
            if google_crc32c.value(kept[-1]) != crc:
                raise SystemExit("damaged data")
        yield len(places)

    return run


def tensorflow(
    directory: Path, *, buffer: int = 0, calls: int | None = None, block: int = 1, ahead: int = 1
) -> Run:
    """TFRecordDataset on all files: one after the other, or 16 at a time before a shuffle buffer."""
    from pipeline.tf_cpu import tf

    def run() -> Iterator[int]:
        files = sorted(map(str, directory.glob("train-*")))
        if buffer:
            dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files))
            parallel = (
                {} if calls is None else {"num_parallel_calls": calls, "deterministic": False}
            )
            dataset = dataset.interleave(tf.data.TFRecordDataset, 16, block, **parallel).shuffle(
                buffer
            )
        else:
            dataset = tf.data.TFRecordDataset(files)
        dataset = dataset.batch(BATCH, drop_remainder=True)
        for batch in dataset.prefetch(ahead) if ahead else dataset:
            yield int(batch.shape[0])

    return run


def grain_array_record(directory: Path, threads: int) -> Run:
    """A true permutation. Reading batch by batch in the source's own order of threads is grain at its cheapest."""
    import grain

    def run() -> Iterator[int]:
        source = grain.sources.ArrayRecordDataSource(
            sorted(map(str, directory.glob("*.array_record")))
        )
        dataset = (
            grain.MapDataset.source(source)
            .shuffle(seed=0)
            .batch(BATCH, drop_remainder=True, batch_fn=list)
        )
        for batch in dataset.to_iter_dataset(
            grain.ReadOptions(num_threads=threads, prefetch_buffer_size=threads)
        ):
            yield len(batch)

    return run


def webdataset(directory: Path, workers: int) -> Run:
    """Shuffled shards and a buffer of 1,024 records, a quarter of what ours mixes: the larger, the slower it is."""
    import torch.utils.data
    import webdataset as wds

    def run() -> Iterator[int]:
        files = sorted(map(str, directory.glob("*.tar")))
        dataset = wds.WebDataset(files, shardshuffle=len(files), seed=0).shuffle(1024, initial=1024)
        dataset = dataset.to_tuple("jpg", "cls").batched(BATCH, collation_fn=list, partial=False)
        for batch in torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers):
            yield len(batch)

    return run


def mosaic(directory: Path, workers: int) -> Run:
    """Its default shuffle, py1e, over one node."""
    import torch.utils.data
    from streaming import StreamingDataset

    def run() -> Iterator[int]:
        dataset = StreamingDataset(
            local=str(directory), shuffle=True, batch_size=BATCH, num_canonical_nodes=1
        )
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=BATCH, num_workers=workers, collate_fn=list, drop_last=True
        )
        for batch in loader:
            yield len(batch)

    return run


def _tf(**options: int) -> Contender:
    return Contender(
        "tfrecord", "tensorflow", functools.partial(tensorflow, **options), every_round=True
    )


def _peer(
    imports: str, run: Callable[..., Run], every_round: bool = False, **options: int
) -> Contender:
    data = {"webdataset": "webdataset", "streaming": "mds"}.get(imports, "array_record")
    return Contender(data, imports, functools.partial(run, **options), every_round=every_round)


CONTENDERS = {
    "ours": Contender("tfrecord", "google_crc32c", infeed, every_round=True),
    "bare loop": Contender("tfrecord", "google_crc32c", bare, every_round=True),
    "TFRecordDataset": _tf(ahead=0),
    "interleave 16 (AUTOTUNE), shuffle 1,024": _tf(buffer=1024, calls=-1, ahead=2),
    "interleave 16 (2 calls, blocks of 16), shuffle 1,024": _tf(
        buffer=1024, calls=2, block=16, ahead=2
    ),
    "grain, ArrayRecord, 1 thread": _peer("grain", grain_array_record, True, threads=1),
    "grain, ArrayRecord, 4 threads": _peer("grain", grain_array_record, True, threads=4),
    "webdataset": _peer("webdataset", webdataset, workers=0),
    "webdataset, 2 workers": _peer("webdataset", webdataset, workers=2),
    "MosaicML streaming": _peer("streaming", mosaic, workers=0),
    "MosaicML streaming, 2 workers": _peer("streaming", mosaic, workers=2),
}


def cpu_seconds() -> tuple[float, float]:
    """In programs and in the kernel, of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime for each in used), sum(each.ru_stime for each in used)


def peak_mib() -> float:
    """The most that this process has had in memory so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(run: Run) -> dict[str, float]:
    """Runs it, and returns what it took."""
    bare, begun, before = peak_mib(), time.perf_counter(), cpu_seconds()
    records = sum(run())
    wall, after = time.perf_counter() - begun, cpu_seconds()
    return {
        "records": records,
        "wall": wall,
        "user": after[0] - before[0],
        "kernel": after[1] - before[1],
        "peak": peak_mib() - bare,
    }


def main() -> None:
    """Runs one contender."""
    print(json.dumps(measured(CONTENDERS[sys.argv[1]].prepare(Path(sys.argv[2])))), flush=True)
    os._exit(0)  # some peers wait long for their threads


if __name__ == "__main__":
    main()
