"""Evaluation and training from files that are read whole: exact on any hosts, and resumed on any others."""

import gzip

import numpy as np
import pytest
from host_batches import taken

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.errors import SchemaError
from pipeline.formats import TextLines
from pipeline.hosts import Hosts
from pipeline.orders.defaults import Sizes, plan_records
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.records import weighed

NUMBER = Schema("number", {"number": Feature("int64")})
SIZES = (9, 0, 7, 1, 12, 8, 0, 4)
N, FILES = sum(SIZES), sum(map(bool, SIZES))


def example(i):
    return encode_example(NUMBER, {"number": i})


def line(i):
    return b"%d" % i * (i % 5)


KINDS = {
    "tfrecord": (example, lambda payloads: b"".join(map(frame, payloads)), None),
    "tfrecord gzip": (example, lambda payloads: gzip.compress(b"".join(map(frame, payloads))), None),
    "text": (line, lambda payloads: b"".join(payload + b"\n" for payload in payloads), TextLines()),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def written(request, tmp_path_factory):
    """The records, and the payload of each."""
    payload, put, format = KINDS[request.param]
    directory, ends = tmp_path_factory.mktemp("data"), np.cumsum(SIZES).tolist()
    for number, (size, end) in enumerate(zip(SIZES, ends, strict=True)):
        (directory / f"{number}.tfrecord").write_bytes(
            put([payload(i) for i in range(end - size, end)])
        )
    return open_dataset(f"{directory}/*", format=format), [payload(i) for i in range(N)]


def test_the_number_of_files_bounds_the_streams_and_the_hosts(written):
    records, _ = written
    of_32 = train_dataset(records, global_batch=32, keys=(), epochs="span")
    assert of_32.state(of_32.start)["streams"] == 4  # of 6 files
    assert train_dataset(records, global_batch=FILES, hosts=Hosts(0, FILES), keys=())


def test_an_epoch_of_training_reads_every_file_about_once(tmp_path, requested):
    """Windows and blocks in sight: 4 streams over 12 files of 300 records, a batch takes 16 from each."""
    for number in range(12):
        lines = b"".join(b"%07d" % i * (1 + i % 30) + b"\n" for i in range(300))
        (tmp_path / f"{number:02d}.txt").write_bytes(lines)
    records = open_dataset(tmp_path, format=TextLines())
    sizes = Sizes(streams=4, block_records=1, window_records=200)
    order, window_bytes = plan_records(records, 64, sizes, seed=1, epochs="drop")
    position, groups = order.start, []
    for _ in range(order.steps_per_epoch):
        groups.append(order.rows(position, (range(64),)).record_ids)
        position = order.advance(position, 1)
    requested.clear()
    reading = records.read(weighed(records, groups), window_bytes)
    held = [reading.held_bytes for _ in reading]
    read_bytes = sum(size for _, _, size in requested)
    assert read_bytes <= 1.5 * sum(path.stat().st_size for path in tmp_path.iterdir())
    assert max(held) <= window_bytes


def test_a_record_unlike_the_sample_is_named_by_file_and_number(tmp_path):
    path = tmp_path / "x.tfrecord"
    payloads = [example(i) for i in range(40)]
    payloads[37] = b"no Example"
    path.write_bytes(b"".join(map(frame, payloads)))
    with pytest.raises(SchemaError, match=rf"{path}, record 37 \(record 37 of {path}\): "):
        taken(eval_dataset(path, global_batch=4))  # the schema is that of the first 32
