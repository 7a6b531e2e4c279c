"""A bucket that refuses, and raw data that go away: one clear error, nothing lost, and the same command goes on."""

import functools
import gzip
import re

import pytest
from fake_gcs.server import Status
from stages import without_beam

from beam_jobs import stages
from beam_jobs.launch import exit_with
from beam_jobs.split.ledger import Receipt
from converters import imagenet_to_gcs
from pipeline.shards.manifest import read_manifest
from pipeline.storage import gcs_upload

pytestmark = pytest.mark.slow

TRAIN = "raw/ILSVRC2012_img_train.tar"
FORBIDDEN = r"permission denied, or a quota is used up \(403\)\. The account needs the role Storage Object User"
# A bucket with a retention policy, or an account that may create and not delete: objects stay as they are.
NO_CHANGES = r"^DELETE |upload.*ifGenerationMatch=[1-9]"


def conversion(raw, out):
    options = f"--raw-data-dir={raw} --gcs-output-path={out} --label-file={raw}/synsets.txt"
    return [*options.split(), "--num-train-shards=5"]


@pytest.fixture
def run(bucket, raw, capfd):
    """run("--flag", ...): (exit status, what it says on stderr) of the real command into gs://bucket/out."""

    def command(*flags):
        try:
            exit_with(lambda: imagenet_to_gcs.main([*conversion(raw, f"{bucket}/out"), *flags]))
            return 0, capfd.readouterr().err
        except SystemExit as ended:
            return ended.code, capfd.readouterr().err

    return command


@pytest.fixture(scope="module")
def golden(photos, tmp_path_factory, shard_digests):
    """golden("--flag", ...): the digests of a conversion from disk to disk."""

    @functools.cache
    def converted(*flags):
        out = tmp_path_factory.mktemp("golden") / "out"
        with without_beam():
            imagenet_to_gcs.main([*conversion(photos[0], out), *flags])
        return shard_digests(out)

    return converted


@pytest.fixture
def goes_on(bucket, gcs_server, run, golden, shard_digests):
    """goes_on("--flag", ...): without the fault the same command ends well and sends nothing finished again."""

    def check(*flags, finished):
        name = bucket.removeprefix("gs://")
        gcs_server.reset()
        before = gcs_server.objects(name, "out/")
        shards = [
            path
            for path in before
            if "/train-" in path and f"out/_shards/{path[4:]}.json" in before
        ]
        assert len(shards) == finished
        with without_beam():
            assert run(*flags) == (0, "")
        after = gcs_server.objects(name, "out/")
        assert {path: after[path] for path in shards} == {path: before[path] for path in shards}
        assert not [
            path for path in shards if gcs_server.requests(f"POST /upload.*name={path}(&|$)")
        ]
        assert shard_digests(f"{bucket}/out") == golden(*flags)

    return check


def one_error(ended):
    """The error's text, when the command has ended with one and with nothing else."""
    status, said = ended
    assert (status, said.count("error: "), "Traceback" in said) == (2, 1, False), said
    return said


def test_a_raw_object_that_vanishes_after_the_scan_is_named(
    raw, bucket, gcs_server, run, goes_on, monkeypatch
):
    name, write_shard, begun = bucket.removeprefix("gs://"), stages.write_shard, []
    data = gcs_server.read(name, TRAIN)

    def vanished(*args):
        begun.append(args)
        if len(begun) == 3:
            gcs_server.delete(name, TRAIN)
        return write_shard(*args)

    monkeypatch.setattr(stages, "write_shard", vanished)
    said = one_error(run("--splits=train"))
    assert f"cannot read {raw}/ILSVRC2012_img_train.tar: there is no such object (404)" in said
    monkeypatch.undo()
    gcs_server.write(name, TRAIN, data)
    goes_on("--splits=train", finished=2)


@pytest.mark.parametrize(
    "request_for", ["GET .*{}.*alt=media", r"GET /storage\S*{}\.tar\?projection"]
)
def test_raw_data_that_may_not_be_read_or_found_are_named(
    raw, gcs_server, run, goes_on, request_for
):
    gcs_server.fail(request_for.format("ILSVRC2012_img_train"), Status(403), times=None)
    said = one_error(run("--splits=train"))
    assert re.search(rf"cannot (read|find) {raw}/ILSVRC2012_img_train\.tar: {FORBIDDEN}", said)
    goes_on("--splits=train", finished=0)


@pytest.fixture
def small_pieces(monkeypatch):
    """Shards as resumable uploads of more than one piece, as those of 100 MB are."""
    monkeypatch.setattr(gcs_upload, "PIECE_BYTES", 256 * 1024)


def test_a_quota_that_is_used_up_in_the_middle_of_an_upload_is_named(
    bucket, gcs_server, run, goes_on, small_pieces
):
    gcs_server.fail("PUT /upload.*name=out/train-00003", Status(403), times=None, skip=1)
    said = one_error(run("--splits=train"))
    assert re.search(rf"cannot write {bucket}/out/train-00003-of-00005: {FORBIDDEN}", said)
    pieces = gcs_server.requests("PUT /upload.*name=out/train-00003")
    assert [request.status for request in pieces][:2] == [308, 403]
    assert "out/train-00003-of-00005" not in gcs_server.objects(bucket.removeprefix("gs://"))
    goes_on("--splits=train", finished=3)


@pytest.mark.usefixtures("without_beam")
def test_a_split_is_converted_into_a_bucket_that_lets_no_object_be_changed_and_again(
    bucket, gcs_server, run
):
    gcs_server.fail(NO_CHANGES, Status(403), times=None)
    assert run("--splits=train") == (0, "")
    assert run("--splits=train") == (0, "")
    uploads = gcs_server.requests(r"upload.*name=out/.*ifGenerationMatch=[1-9]")
    assert uploads == []


@pytest.mark.usefixtures("without_beam")
def test_a_temporary_file_that_may_not_be_deleted_fails_no_conversion(
    bucket, raw, photos, gcs_server, run
):
    tar = (photos[0] / "ILSVRC2012_img_train.tar").read_bytes()
    name = bucket.removeprefix("gs://")
    gcs_server.delete(name, "raw/ILSVRC2012_img_train.tar")
    gcs_server.write(name, "raw/ILSVRC2012_img_train.tar.gz", gzip.compress(tar, 1))
    gcs_server.fail(NO_CHANGES, Status(403), times=None)
    assert run("--splits=train") == (0, "")
    assert run("--splits=train") == (0, "")


@pytest.mark.usefixtures("without_beam")
def test_where_no_object_may_be_changed_a_second_split_is_refused_by_name(
    bucket, gcs_server, run, goes_on
):
    gcs_server.fail(NO_CHANGES, Status(403), times=None)
    said = one_error(run())
    assert re.search(rf"cannot write {bucket}/out/\w+\.json: {FORBIDDEN}", said)
    goes_on(finished=5)


@pytest.mark.usefixtures("without_beam")
def test_where_no_object_may_be_changed_overwriting_is_refused_and_takes_nothing_away(
    bucket, gcs_server, run
):
    assert run("--splits=train")[0] == 0
    before = gcs_server.objects(bucket.removeprefix("gs://"), "out/")
    gcs_server.fail(NO_CHANGES, Status(403), times=None)
    said = one_error(run("--splits=train", "--seed=1", "--overwrite"))
    assert re.search(rf"cannot delete {bucket}/out/\S+: {FORBIDDEN}", said)
    left = gcs_server.objects(bucket.removeprefix("gs://"), "out/")
    assert {name: left[name] for name in before} == before
    gcs_server.reset()
    assert run("--splits=train", "--seed=1", "--overwrite") == (0, "")
    assert read_manifest(f"{bucket}/out").split("train").seed == 1


@pytest.mark.usefixtures("without_beam")
def test_where_no_object_may_be_changed_a_killed_conversion_goes_on(
    bucket, gcs_server, run, monkeypatch, small_pieces
):
    """A shard without a receipt stands in its own way: it is made again, and is found to be there already."""

    def killed(*_):
        raise RuntimeError("killed")

    monkeypatch.setattr(Receipt, "write", killed)
    status, error = run("--splits=train")
    assert (status, "RuntimeError: killed" in error) == (70, True)
    monkeypatch.undo()
    monkeypatch.setattr(gcs_upload, "PIECE_BYTES", 256 * 1024)
    before = gcs_server.objects(bucket.removeprefix("gs://"), "out/train-")
    assert len(before) == 1
    gcs_server.fail(NO_CHANGES, Status(403), times=None)
    assert run("--splits=train") == (0, "")
    after = gcs_server.objects(bucket.removeprefix("gs://"), "out/train-")
    assert len(after) == 5
    assert {name: after[name] for name in before} == before
