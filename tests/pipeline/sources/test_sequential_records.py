"""Evaluation and training from files that are read whole: exact on any hosts, and resumed on any others."""

import gzip

import numpy as np
import pytest
from host_batches import taken

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.errors import CorruptRecordError, OptionError, SchemaError, ShardError
from pipeline.formats import TextLines
from pipeline.hosts import Hosts
from pipeline.orders.defaults import Sizes, plan_records
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from pipeline.sources.records import weighed
from pipeline.storage.local import LocalStorage

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
    with pytest.raises(
        OptionError, match=rf"7 hosts cannot share {FILES} files that have no index.*infeed index"
    ):
        train_dataset(records, global_batch=7, hosts=Hosts(0, 7), keys=())


def test_an_epoch_of_training_reads_every_file_about_once(tmp_path, monkeypatch):
    """Windows and blocks in sight: 4 streams over 12 files of 300 records, a batch takes 16 from each."""
    read, read_ranges = [0], LocalStorage.read_ranges

    def counting(self, ranges):
        for data in read_ranges(self, ranges):
            read[0] += len(data)
            yield data

    monkeypatch.setattr(LocalStorage, "read_ranges", counting)
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
    read[0] = 0
    reading = records.read(weighed(records, groups), window_bytes)
    held = [reading.held_bytes for _ in reading]
    assert read[0] <= 1.5 * sum(path.stat().st_size for path in tmp_path.iterdir())
    assert max(held) <= window_bytes


def test_errors_name_file_and_record_through_an_input(tmp_path):
    frames = [frame(example(i)) for i in range(40)]
    damaged = frames[13][:-5] + b"!" + frames[13][-4:]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(b"".join([*frames[:13], damaged, *frames[14:]]))
    with pytest.raises(
        CorruptRecordError, match=rf"{path}, record 13 at byte \d+: its payload has crc32c"
    ):
        taken(eval_dataset(path, global_batch=4, keys=("number",)))
    source = eval_dataset(path, global_batch=4, keys=("number",))
    path.write_bytes(b"".join([*frames[:13], b"\0" * len(frames[13]), *frames[14:]]))
    with pytest.raises(
        ShardError, match=rf"{path}, record 13 at byte \d+: the checksum of its length is wrong"
    ):
        taken(source)
    path.write_bytes(b"".join([*frames[:37], frame(b"no Example"), *frames[38:]]))
    with pytest.raises(SchemaError, match=rf"{path}, record 37 \(record 37 of {path}\): "):
        taken(eval_dataset(path, global_batch=4))  # the schema is that of the first 32
