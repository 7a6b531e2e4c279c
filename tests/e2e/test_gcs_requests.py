"""What a conversion with hundreds of shards and folders asks of a bucket: few requests for each, and many at once."""

import itertools

import pytest
from fake_gcs.server import Stall

from converters import imagenet_to_gcs

pytestmark = pytest.mark.slow

CLASSES, SHARDS = 64, 50
STALL_SECONDS = 0.25
CLASS_LISTING = "GET .*prefix=raw/train/n"
RECEIPT = "_shards/train-.*alt=media"


@pytest.fixture
def flags(bucket, gcs_server, raw_folders, tmp_path):
    """Folders of raw images in the bucket, to be converted into shards beside them."""
    raw = type(raw_folders)(tmp_path / "raw", train=(1,) * CLASSES).write_folders()
    for file in raw.directory.rglob("*.*"):
        name = f"raw/{file.relative_to(raw.directory)}"
        gcs_server.write(bucket.removeprefix("gs://"), name, file.read_bytes())
    base = [f"--raw-data-dir={bucket}/raw", f"--gcs-output-path={bucket}/out", "--splits=train"]
    return [*base, f"--label-file={bucket}/raw/synsets.txt", f"--num-train-shards={SHARDS}"]


def asked_of(gcs_server, arguments, pattern):
    """The requests of the command that match the pattern, each of which takes STALL_SECONDS longer."""
    gcs_server.reset()
    gcs_server.fail(pattern, Stall(STALL_SECONDS), times=None)
    imagenet_to_gcs.main(arguments)
    return gcs_server.requests(pattern)


def test_no_command_asks_for_one_shard_or_folder_after_the_other(flags, gcs_server):
    again, requests = [*flags, "--overwrite", "--seed=1"], {}
    for what, pattern, command, expected in (
        ("class folders of a dry run", CLASS_LISTING, [*flags, "--dry-run"], CLASSES),
        # and one of them again, to estimate the work
        ("class folders", CLASS_LISTING, flags, CLASSES + 1),
        # at its begin and in its commit
        ("receipts of a finished conversion", RECEIPT, flags, 2 * SHARDS),
        ("receipts and shards to remove", "DELETE .*train-", again, 2 * SHARDS),
    ):
        asked = asked_of(gcs_server, command, pattern)
        assert len(asked) == expected, what
        together = [b.started < a.started + a.seconds for a, b in itertools.pairwise(asked)]
        assert sum(together) > expected / 2, what
        requests[what] = len(gcs_server.requests())
    # What is finished is proven by listings and receipts, and by no request for any shard.
    assert requests["receipts of a finished conversion"] < CLASSES + 2 * SHARDS + 60
