"""Conversions with everything in a bucket of S3: the bytes of a disk, through failures and kills, and by Dask."""

import os
import random
import time

import pytest
from fake_s3.server import SECRET, Reset, Short, Status
from stages import without_beam
from sweep import SWEEP

from converters import imagenet_to_gcs
from pipeline.commands.verify import main as verify
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import write_file

pytestmark = pytest.mark.slow

FAULTS = [
    Status(503),
    Status(429),
    Status(500, when="after"),
    Reset(),
    Reset(when="after"),
    Short(),
]
KILLS = 20 if SWEEP else 4


@pytest.fixture
def raw(s3_bucket, photos):
    """s3://bucket/raw: the photos' tars and label files."""
    for file in photos[0].iterdir():
        write_file(open_storage(s3_bucket), f"{s3_bucket}/raw/{file.name}", file.read_bytes())
    return f"{s3_bucket}/raw"


@pytest.fixture
def expected(photos, shard_digests):
    return shard_digests(photos[1])


def flags(raw, out, *more):
    options = f"--raw-data-dir={raw} --output={out} --label-file={raw}/synsets.txt"
    return [*options.split(), "--target-shard-bytes=100KB", *more]


@pytest.mark.usefixtures("without_beam")
def test_a_conversion_whose_requests_fail_has_the_bytes_of_one_on_a_disk(
    raw, s3_bucket, s3_server, expected, shard_digests
):
    s3_server.reset()
    for number, fault in enumerate(FAULTS):
        s3_server.fail_share("/(out|raw)", fault, 0.05 / len(FAULTS), seed=number)
    imagenet_to_gcs.main(flags(raw, f"{s3_bucket}/out"))
    data = eval_dataset(f"{s3_bucket}/out", global_batch=64, keys=["image/class/label"])
    assert sum(int(batch["_mask"].sum()) for batch in data) == data.num_records
    assert verify([f"{s3_bucket}/out", "--decode"]) == 0
    assert {request["host"] for request in s3_server.requests()} == {"127.0.0.1"}
    s3_server.reset()
    assert shard_digests(f"{s3_bucket}/out") == expected


def test_a_conversion_killed_at_any_moment_resumes(
    fork_server, raw, s3_bucket, s3_server, expected, shard_digests, tmp_path
):
    moments = random.Random(0)
    for kill in range(KILLS):
        out = tmp_path / f"{kill}"
        process = fork_server.start(
            ["-m", "converters.imagenet_to_gcs", *flags(raw, f"{s3_bucket}/out")], out, os.environ
        )
        s3_server.reset()
        first = time.monotonic()
        while not s3_server.requests("PUT .*/out/") and time.monotonic() < first + 30:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 1.5))
        process.kill()
        process.wait()
        bucket = s3_bucket.removeprefix("s3://")
        for name in s3_server.objects(bucket):  # a killed conversion leaves its job, too
            assert SECRET.encode() not in s3_server.read(bucket, name), name
    with without_beam():
        imagenet_to_gcs.main(flags(raw, f"{s3_bucket}/out"))
    assert shard_digests(f"{s3_bucket}/out") == expected
    assert verify([f"{s3_bucket}/out"]) == 0


@pytest.mark.usefixtures("without_beam")
def test_a_tar_replaced_by_one_of_the_same_size_is_refused(raw, s3_bucket):
    storage = open_storage(raw)
    imagenet_to_gcs.main(flags(raw, f"{s3_bucket}/out", "--splits=validation"))
    tar = f"{raw}/ILSVRC2012_img_val.tar"
    write_file(storage, tar, storage.read(tar).replace(b"\xff\xd9", b"\xff\xd8", 1))
    with pytest.raises(ConversionError, match=r"ILSVRC2012_img_val.tar has changed .* --overwrite"):
        imagenet_to_gcs.main(flags(raw, f"{s3_bucket}/out", "--splits=validation"))


def test_dask_workers_read_and_write_a_bucket(raw, s3_bucket, expected, shard_digests, run_forked):
    more = ["--runner=dask"]
    code, printed = run_forked(
        ["-m", "converters.imagenet_to_gcs", *flags(raw, f"{s3_bucket}/out", *more)], 120
    )
    assert code == 0, printed
    assert shard_digests(f"{s3_bucket}/out") == expected


def test_dataflow_refuses_s3_by_name(raw, s3_bucket, run_forked):
    more = ["--runner=dataflow", "--project=my-project-123", "--region=us-central1"]
    for source, out in ((raw, "gs://bucket/out"), (raw, f"{s3_bucket}/out")):
        code, printed = run_forked(
            ["-m", "converters.imagenet_to_gcs", *flags(source, out, *more)], 60
        )
        assert code == 2, printed
        assert "s3://" in printed
        assert "--runner=dataflow" in printed
