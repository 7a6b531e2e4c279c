"""Files without an index in a bucket: counted and read in large pieces, the same records as on a disk."""

import gzip

import numpy as np
import pytest

from pipeline.datasets import eval_dataset, open_dataset, train_dataset
from pipeline.errors import ShardError
from pipeline.formats import TextLines
from pipeline.shards.record import frame
from pipeline.sources.records import fetch

PAYLOADS = [bytes([i]) * 100_000 for i in range(90)]
FILES = {
    f"train-{number}-of-3": b"".join(map(frame, PAYLOADS[30 * number : 30 * number + 30])) for number in range(3)
} | {"train-0-of-3": gzip.compress(b"".join(map(frame, PAYLOADS[:30])), 0)}


@pytest.fixture
def files(bucket, gcs_server, tmp_path):
    """The same files in a bucket and on a disk."""
    for name, data in FILES.items():
        gcs_server.write(bucket.removeprefix("gs://"), f"data/{name}", data)
        (tmp_path / name).write_bytes(data)
    return f"{bucket}/data", str(tmp_path)


def taken(source, count):
    batches = source.batches()
    try:
        return [
            (batch["_index"].tolist(), batch["_crc"].tolist()) for batch, _ in zip(batches, range(count), strict=False)
        ]
    finally:
        batches.close()


def test_a_bucket_gives_the_batches_of_a_disk_with_few_requests(files, gcs_server):
    found = []
    for directory in files:
        gcs_server.reset()
        records = open_dataset(directory)
        if records.info.remote:
            assert len(gcs_server.requests()) <= 3 * (3 + 3 + 1) + 9  # of each file 3 MB are counted and sampled
            gcs_server.reset()
        evaluated = taken(eval_dataset(records, global_batch=16), 6)
        if records.info.remote:
            assert len(gcs_server.requests()) <= 3 * 4
        found.append((evaluated, taken(train_dataset(records, global_batch=6, seed=1), 30)))
    assert found[0] == found[1]


def test_other_content_of_the_same_size_has_another_fingerprint(files, bucket, gcs_server):
    before = open_dataset(files[0]).info.fingerprint
    other = b"".join(map(frame, [b"x" * 100_000, *PAYLOADS[31:60]]))
    gcs_server.write(bucket.removeprefix("gs://"), "data/train-1-of-3", other)
    assert open_dataset(files[0]).info.fingerprint != before


def test_lines_and_damage_are_found_in_a_bucket_too(files, bucket, gcs_server):
    name = bucket.removeprefix("gs://")
    gcs_server.write(name, "texts/a.txt", b"one\ntwo")
    gcs_server.write(name, "texts/b.txt", gzip.compress(b"three\n"))
    records = open_dataset(f"{bucket}/texts", format=TextLines())
    assert [record.payload for record in fetch(records, np.arange(3))] == [b"one", b"two", b"three"]
    gcs_server.write(name, "data/train-2-of-3", FILES["train-2-of-3"][:-1])
    with pytest.raises(ShardError, match=r"gs://.*train-2-of-3, record 29 at byte \d+: the file ends at byte"):
        open_dataset(files[0])
