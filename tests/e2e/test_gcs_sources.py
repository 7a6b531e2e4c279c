"""Files that no manifest names, in a bucket: found by directory, pattern or name, and read with few requests."""

import numpy as np
import pytest
from host_batches import assert_same, taken

from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import OptionError
from pipeline.formats import FixedLength
from pipeline.sources.records import fetch, intact


@pytest.fixture
def files(bucket, gcs_server):
    """gs://bucket/of, and the 30 records of 100 bytes in its three files."""
    noise = np.random.default_rng(0)
    written = [noise.bytes(100) for _ in range(30)]
    for number in range(3):
        data = b"head" + b"".join(written[10 * number : 10 * number + 10])
        gcs_server.write(bucket.removeprefix("gs://"), f"of/{number}.bin", data)
    return f"{bucket}/of", written


def test_records_of_fixed_length_are_read_from_a_bucket_and_replaced_files_are_other_data(files, gcs_server):
    directory, written = files
    format = FixedLength(100, header_bytes=4)
    records = open_dataset(directory, format=format)
    assert records.info.remote
    gcs_server.reset()
    assert [intact(record).payload for record in fetch(records, np.arange(5, 30))] == written[5:]
    assert len(gcs_server.requests("alt=media")) == 3
    assert [records[0], *records.take([29, 3])] == [written[0], written[29], written[3]]
    assert len(gcs_server.requests("alt=media")) == 6
    prints = [open_dataset(f"{directory}/{names}", format=format).info.fingerprint for names in ("*.bin", "[01].bin")]
    assert prints[0] == records.info.fingerprint != prints[1]
    assert open_dataset(f"{directory}/2.bin", format=format).num_records == 10
    name = directory.removeprefix("gs://").partition("/")[0]
    gcs_server.write(name, "of/1.bin", gcs_server.read(name, "of/0.bin"))  # the same size, other bytes
    assert open_dataset(directory, format=format).info.fingerprint != records.info.fingerprint
    with pytest.raises(OptionError, match=rf"{directory}/3\.bin is neither a file nor a directory"):
        open_dataset(f"{directory}/3.bin", format=format)


def test_workers_read_a_bucket_with_the_same_bits(files):
    records = open_dataset(files[0], format=FixedLength(np.dtype([("x", "u1", (100,))]), header_bytes=4))
    options = {"global_batch": 5, "epochs": "span"}
    ours, theirs = (taken(train_dataset(records, workers=workers, **options), count=9) for workers in (2, 0))
    assert_same(ours, theirs)
