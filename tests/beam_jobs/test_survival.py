"""kill -9 of the whole process group at placed moments: the same command again ends with the same bytes.

A handful of the kills in `kills`, each followed by a run in one process; .ci/sweep runs all of them, and each command
again as it was."""

import fnmatch

import pytest
from kills import KILLS, NUM_SHARDS, InBucket, OnDisk, convert, digests, strike
from raw_data.imagenet import photographs

from pipeline.shards.naming import verdict_file


@pytest.fixture(scope="module")
def run(fork_server, tmp_path_factory):
    """run(command, env) -> (exit code, all that it printed)."""

    def forked(command, env):
        return fork_server.run(command, tmp_path_factory.mktemp("printed") / "printed", env, timeout=120)

    return forked


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return photographs(tmp_path_factory.mktemp("photos")).directory


@pytest.fixture(scope="module")
def reference(raw, tmp_path_factory, run):
    """The shards of a conversion that nobody killed."""
    place = OnDisk(str(tmp_path_factory.mktemp("reference") / "out"))
    status, output = convert(str(raw), place, run=run)
    assert status == 0
    assert output.startswith(f"train: 54 records, 1.53 MB in {NUM_SHARDS} shards, ")
    return place


@pytest.fixture
def strike_one(raw, gcs_server, tmp_path, request, run):
    def one(kill):
        if kill.on == "disk":
            return strike(kill, str(raw), OnDisk(str(tmp_path / "out")), run, 1)
        bucket = request.getfixturevalue("bucket").removeprefix("gs://")
        for file in raw.iterdir():
            gcs_server.write(bucket, f"raw/{file.name}", file.read_bytes())
        return strike(kill, f"gs://{bucket}/raw", InBucket(gcs_server, bucket, "out"), run, 1)

    return one


def name_of(kill):
    return f"{kill.stage}: {kill.moment}, {kill.on}, {kill.processes}".replace(" ", "-")


@pytest.mark.long
@pytest.mark.parametrize("kill", [kill for kill in KILLS if kill.in_ci], ids=name_of)
def test_a_killed_conversion_resumes_to_the_same_bytes_and_repeats_no_work(strike_one, reference, capsys, kill):
    outcome = strike_one(kill)
    assert outcome.problems(digests(reference)) == []
    with capsys.disabled():
        print(f"\n{name_of(kill)}: {len(outcome.finished)} of {NUM_SHARDS} shards kept", end=" ")


def test_the_thirty_kills_cover_every_stage_both_storages_and_both_process_counts():
    assert len(KILLS) == len(set(KILLS)) == 30
    for kills in (KILLS, [kill for kill in KILLS if kill.in_ci]):
        places = {(kill.stage, kill.on) for kill in kills}
        assert len(places) >= (10 if kills is KILLS else 6)
        assert {kill.stage for kill in kills} == {"scan", "assign", "mid-shard", "shard to receipt", "commit"}
        assert {kill.processes for kill in kills} == {1, 2}


def test_every_kill_pattern_matches_a_file_that_a_conversion_writes(reference):
    """A pattern that matches nothing would kill nothing; the SIGKILL above says so only once it is run."""
    names = [name.rpartition("/")[2] for name in [*reference.files(), verdict_file("train", "of-a-run")]]
    for kill in KILLS:
        moment, _, pattern = kill.at.partition(":")
        if moment not in ("scan", "assign"):
            assert fnmatch.filter(names, pattern.partition("@")[0]), kill
