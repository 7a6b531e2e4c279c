"""kill -9 of the whole process group at placed moments: the same command again ends with the same bytes.

A handful of the kills in `kills`, each followed by a run in one process; .ci/sweep runs all of them."""

import pytest
from kills import KILLS, NUM_SHARDS, InBucket, OnDisk, convert, digests, strike
from raw_data.imagenet import photographs
from sweep import SWEEP


@pytest.fixture(scope="module")
def run(fork_server, tmp_path_factory):
    """run(command, env) -> (exit code, all that it printed)."""

    def forked(command, env):
        return fork_server.run(
            command, tmp_path_factory.mktemp("printed") / "printed", env, timeout=120
        )

    return forked


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return photographs(tmp_path_factory.mktemp("photos")).directory


@pytest.fixture(scope="module")
def reference(raw, tmp_path_factory, run):
    """The shards of a conversion that nobody killed."""
    place = OnDisk(str(tmp_path_factory.mktemp("reference") / "out"))
    status, output = convert(str(raw), place, run)
    assert status == 0
    assert output.startswith(f"train: 54 records, 1.53 MB in {NUM_SHARDS} shards, ")
    return place


@pytest.fixture
def strike_one(raw, gcs_server, tmp_path, request, run):
    def one(kill):
        if kill.on == "disk":
            return strike(kill, str(raw), OnDisk(str(tmp_path / "out")), run)
        bucket = request.getfixturevalue("bucket").removeprefix("gs://")
        for file in raw.iterdir():
            gcs_server.write(bucket, f"raw/{file.name}", file.read_bytes())
        return strike(kill, f"gs://{bucket}/raw", InBucket(gcs_server, bucket, "out"), run)

    return one


def name_of(kill):
    return f"{kill.stage}: {kill.moment}, {kill.on}, {kill.processes}".replace(" ", "-")


QUICK = "half:train-00003-of-*.json"  # of the kills, the one that the quick suite takes
CASES = [
    pytest.param(kill, id=name_of(kill), marks=[] if kill.at == QUICK else pytest.mark.slow)
    for kill in KILLS
    if SWEEP or kill.in_ci
]


@pytest.mark.parametrize("kill", CASES)
def test_a_killed_conversion_resumes_to_the_same_bytes_and_repeats_no_work(
    strike_one, reference, kill
):
    assert strike_one(kill).problems(digests(reference)) == []
