"""Files that no manifest names, in a bucket: found by directory, pattern or name, and read with few requests."""

import gzip

import numpy as np
import pytest
from host_batches import assert_same, taken

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.errors import OptionError, ShardError
from pipeline.formats import FixedLength, TextLines
from pipeline.shards.frames import frame
from pipeline.sources.records import fetch, intact

PAYLOADS = [bytes([i]) * 100_000 for i in range(90)]
FRAMED = [b"".join(map(frame, PAYLOADS[start : start + 30])) for start in (0, 30, 60)]
TFRECORDS = {f"train-{number}-of-3": data for number, data in enumerate(FRAMED)}
TFRECORDS["train-0-of-3"] = gzip.compress(FRAMED[0], 0)


@pytest.fixture
def write(bucket, gcs_server):
    """write("dir/file", data): into the bucket."""
    return lambda name, data: gcs_server.write(bucket.removeprefix("gs://"), name, data)


@pytest.fixture
def fixed_length(bucket, write):
    """gs://bucket/of, and the 30 records of 100 bytes in its three files."""
    noise = np.random.default_rng(0)
    written = [noise.bytes(100) for _ in range(30)]
    for number in range(3):
        write(f"of/{number}.bin", b"head" + b"".join(written[10 * number : 10 * number + 10]))
    return f"{bucket}/of", written


def test_records_of_fixed_length_are_read_and_replaced_files_are_other_data(
    fixed_length, gcs_server, write
):
    directory, written = fixed_length
    format = FixedLength(100, header_bytes=4)
    records = open_dataset(directory, format=format)
    assert records.info.remote
    gcs_server.reset()
    assert [intact(record)[0] for record in fetch(records, np.arange(5, 30))] == written[5:]
    assert len(gcs_server.requests("alt=media")) == 3
    assert [records[0], *records.take([29, 3])] == [written[0], written[29], written[3]]
    assert len(gcs_server.requests("alt=media")) == 6
    every, two = (
        open_dataset(f"{directory}/{names}", format=format) for names in ("*.bin", "[01].bin")
    )
    assert every.info.fingerprint == records.info.fingerprint != two.info.fingerprint
    assert open_dataset(f"{directory}/2.bin", format=format).num_records == 10
    write("of/1.bin", b"head" + b"".join(written[:10]))  # the same size, other bytes
    assert open_dataset(directory, format=format).info.fingerprint != records.info.fingerprint
    with pytest.raises(OptionError, match=r"3\.bin is neither a file nor a directory"):
        open_dataset(f"{directory}/3.bin", format=format)


def test_workers_read_a_bucket_with_the_same_bits(fixed_length):
    format = FixedLength(np.dtype([("x", "u1", (100,))]), header_bytes=4)
    records = open_dataset(fixed_length[0], format=format)
    options = {"global_batch": 5, "epochs": "span"}
    ours, theirs = (
        taken(train_dataset(records, workers=workers, **options), count=9) for workers in (2, 0)
    )
    assert_same(ours, theirs)


def numbers(source, count):
    batches = taken(source, count=count)
    return [(batch["_index"].tolist(), batch["_crc"].tolist()) for batch in batches]


@pytest.mark.slow
def test_tfrecords_without_an_index_give_the_batches_of_a_disk_with_few_requests(
    bucket, write, gcs_server, tmp_path
):
    for name, data in TFRECORDS.items():
        write(f"data/{name}", data)
        (tmp_path / name).write_bytes(data)
    found = []
    for directory in (f"{bucket}/data", str(tmp_path)):
        gcs_server.reset()
        records = open_dataset(directory)
        if records.info.remote:
            # of each file 3 MB are counted and sampled
            assert len(gcs_server.requests()) <= 3 * (3 + 3 + 1) + 9
            gcs_server.reset()
        evaluated = numbers(eval_dataset(records, global_batch=16), 6)
        if records.info.remote:
            assert len(gcs_server.requests()) <= 3 * 4
        found.append((evaluated, numbers(train_dataset(records, global_batch=6, seed=1), 30)))
    assert found[0] == found[1]


def test_lines_and_damage_are_found(bucket, write):
    write("texts/a.txt", b"one\ntwo")
    write("texts/b.txt", gzip.compress(b"three\n"))
    records = open_dataset(f"{bucket}/texts", format=TextLines())
    assert [record[0] for record in fetch(records, np.arange(3))] == [b"one", b"two", b"three"]
    write("data/train-0-of-1", FRAMED[2][:-1])
    with pytest.raises(ShardError, match=r"gs://.*train-0-of-1, record 29"):
        open_dataset(f"{bucket}/data")
