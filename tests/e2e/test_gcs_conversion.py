"""The conversion with everything in a bucket: the same bytes as on a disk, through failures, kills and twins."""

import os

import pytest
from fake_gcs.server import Stall, Status
from stages import without_beam

from converters import imagenet_to_gcs
from converters.imagenet.converter import ImagenetConverter
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError, ShardError
from pipeline.shards.manifest import read_manifest


def flags(raw, out):
    options = f"--raw-data-dir={raw} --gcs-output-path={out} --label-file={raw}/synsets.txt"
    return [*options.split(), "--target-shard-bytes=100KB"]


def command(raw, out, *more):
    return ["-m", "converters.imagenet_to_gcs", *flags(raw, out), *more]


@pytest.fixture(scope="module")
def expected(photos, shard_digests):
    found = shard_digests(photos[1])
    assert len(found) == 15 + 4 + 2 + 2
    return found


@pytest.mark.slow
def test_a_conversion_killed_before_a_receipt_resumes_without_sending_finished_shards(
    fork_server, raw, bucket, gcs_server, expected, shard_digests, tmp_path
):
    receipt = r"upload.*_shards/train-00007"
    gcs_server.fail(receipt, Stall(), times=None)
    process = fork_server.start(command(raw, f"{bucket}/out"), tmp_path / "printed", os.environ)
    gcs_server.wait_for(receipt)
    process.kill()
    process.wait()
    name = bucket.removeprefix("gs://")
    shards = gcs_server.objects(name, "out/train-")
    assert "out/train-00007-of-00015" in shards
    assert "out/manifest.json" not in gcs_server.objects(name)
    gcs_server.reset()
    with without_beam():
        imagenet_to_gcs.main(flags(raw, f"{bucket}/out"))
    assert shard_digests(f"{bucket}/out") == expected
    after = gcs_server.objects(name, "out/train-")
    assert {shard: after[shard] for shard in shards} == shards  # generations, too
    sent = {shard: gcs_server.requests(f"POST /upload.*name={shard}$") for shard in shards}
    # Without a receipt nobody knows what is in a shard: it is made again, and the bucket refuses it.
    assert [request.status for request in sent.pop("out/train-00007-of-00015")] == [412]
    assert sent == {shard: [] for shard in shards if "train-00007" not in shard}


@pytest.mark.slow
def test_two_conversions_of_the_same_data_at_once_both_succeed(
    fork_server, raw, bucket, gcs_server, expected, shard_digests, tmp_path
):
    both = [
        fork_server.start(command(raw, f"{bucket}/out"), tmp_path / f"{i}", os.environ)
        for i in range(2)
    ]
    assert [process.wait(120)[0] for process in both] == [0, 0]
    assert shard_digests(f"{bucket}/out") == expected
    left = gcs_server.objects(bucket.removeprefix("gs://"), "out/")
    assert not [name for name in left if "verdict" in name]


def other_bytes(data):
    """The same tar, as far as its headers and sizes tell."""
    return data.replace(b"\xff\xd9", b"\xff\xd8", 1)


@pytest.mark.slow
@pytest.mark.usefixtures("without_beam")
def test_a_tar_replaced_by_one_of_the_same_size_is_refused_until_it_may_overwrite(
    raw, bucket, gcs_server
):
    imagenet_to_gcs.main([*flags(raw, f"{bucket}/out"), "--splits=validation"])
    name, tar = bucket.removeprefix("gs://"), "raw/ILSVRC2012_img_val.tar"
    before = gcs_server.objects(name, "out/")
    gcs_server.write(name, tar, other_bytes(gcs_server.read(name, tar)))
    again = [*flags(raw, f"{bucket}/out"), "--splits=validation", "--max-bad-records=1"]
    changed = rf"other raw data: \S+{tar} has changed .* --overwrite"
    with pytest.raises(ConversionError, match=changed):
        imagenet_to_gcs.main(again)
    assert gcs_server.objects(name, "out/") == before
    imagenet_to_gcs.main([*again, "--overwrite"])
    assert read_manifest(f"{bucket}/out").split("validation").rejected == 1


def test_a_tar_replaced_by_one_of_the_same_size_while_it_is_read_is_named(
    raw, bucket, gcs_server, monkeypatch
):
    name, tar = bucket.removeprefix("gs://"), "raw/ILSVRC2012_img_val.tar"
    convert, other = ImagenetConverter.convert, other_bytes(gcs_server.read(name, tar))

    def replaced_meanwhile(self, ref, data):
        gcs_server.write(name, tar, other)
        return convert(self, ref, data)

    monkeypatch.setattr(ImagenetConverter, "convert", replaced_meanwhile)
    with pytest.raises(ConversionError, match=r"val\.tar .* when it was scanned"):
        imagenet_to_gcs.main([*flags(raw, f"{bucket}/out"), "--splits=validation"])
    assert not [found for found in gcs_server.objects(name, "out/") if "-of-" in found]


@pytest.mark.slow
@pytest.mark.usefixtures("without_beam")
def test_a_conversion_from_a_disk_resumes_from_a_bucket_after_comparing_the_bytes(
    raw, bucket, photos, gcs_server, expected, shard_digests
):
    imagenet_to_gcs.main(flags(photos[0], f"{bucket}/out"))
    gcs_server.reset()
    with pytest.raises(ConversionError, match="let --verify-existing compare the bytes"):
        imagenet_to_gcs.main(flags(raw, f"{bucket}/out"))
    imagenet_to_gcs.main([*flags(raw, f"{bucket}/out"), "--verify-existing"])
    assert gcs_server.requests(r"upload.*name=out/train-") == []
    assert shard_digests(f"{bucket}/out") == expected


@pytest.mark.usefixtures("without_beam")
def test_a_shard_replaced_after_the_conversion_is_refused_before_a_record_is_read(
    raw, bucket, gcs_server
):
    imagenet_to_gcs.main(flags(raw, f"{bucket}/out"))
    name = bucket.removeprefix("gs://")
    shard = bytearray(gcs_server.read(name, "out/validation-00001-of-00004"))
    shard[-1] ^= 1
    gcs_server.write(name, "out/validation-00001-of-00004", bytes(shard))  # the same size
    gcs_server.reset()
    replaced = r"validation-00001-of-00004 has \d+ bytes with crc32c .*, the manifest says"
    with pytest.raises(ShardError, match=replaced):
        eval_dataset(f"{bucket}/out", global_batch=64)
    assert gcs_server.requests(r"alt=media.*-of-") == gcs_server.requests(r"-of-.*alt=media") == []


@pytest.mark.slow
def test_worker_processes_use_credentials_which_show_nowhere_and_write_the_bytes_of_a_local_run(
    run_forked, raw, bucket, gcs_server, expected, shard_digests, credentials
):
    env = os.environ | {"GOOGLE_APPLICATION_CREDENTIALS": credentials.file}
    # by https and with a token, as in production; the proxy brings it to the server
    del env["STORAGE_EMULATOR_HOST"]
    gcs_server.reset()
    gcs_server.fail("upload.*_shards/train-00003", Status(403), times=1)
    convert = command(raw, f"{bucket}/out", "--local-processes=2")
    for _ in range(2):  # the first fails and says why
        status, printed = run_forked(convert, timeout=120, env=env)
        credentials.assert_not_in(printed.encode())
    assert status == 0, printed
    assert shard_digests(f"{bucket}/out") == expected
    uploads = gcs_server.requests("upload.*out/")
    assert uploads
    assert all(each.authorization and each.host.endswith("googleapis.com") for each in uploads)
    name = bucket.removeprefix("gs://")
    objects = gcs_server.objects(name, "out/")
    stated = [found for found in objects if "-of-" not in found or "_shards" in found]
    assert len(stated) > 20
    credentials.assert_not_in(*(gcs_server.read(name, found) for found in stated))
