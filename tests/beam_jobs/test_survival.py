"""kill -9 of the whole process group at placed moments: the same command again ends with the same bytes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.shards.naming import verdict_file

ROOT = Path(__file__).parents[2]
NUM_SHARDS = 6

# moment of which file; how many shards are finished (shard and receipt) when it strikes at the least
MOMENTS = {
    "claim written": "created:train.plan.json",
    "first shard half written": "half:train-00000-of-*6",
    "fourth shard half written": "half:train-00003-of-*6",
    "between shard and receipt": "after:train-00002-of-*6",
    "receipt half written": "half:train-00004-of-*.json",
    "last receipt written": "after:train-00005-of-*.json",
    "in commit, ledger written": "after:train.jsonl",
    "in commit, index written": "after:train.npy",
    "in commit, before the manifest": "before:manifest.json",
    "in commit, manifest half written": "half:manifest.json",
    "in commit, before the verdict": "before:train.verdict.*.json",
}
WITH_TWO_PROCESSES = [
    "claim written",
    "fourth shard half written",
    "between shard and receipt",
    "in commit, index written",
]
CASES = [(name, 1) for name in MOMENTS] + [(name, 2) for name in WITH_TWO_PROCESSES]


def convert(raw, out, processes=1, kill_at=""):
    command = [
        *(sys.executable, "-m", "converters.imagenet_to_gcs", f"--raw_data_dir={raw}", f"--gcs_output_path={out}"),
        *(f"--label_file={raw}/synsets.txt", "--target_shard_bytes=250KB", "--splits=train"),
        f"--local_processes={processes}",
    ]
    env = dict(os.environ, KILL_AT=kill_at, KILL_ROOT=str(ROOT), PYTHONPATH=str(Path(__file__).parent / "faults"))
    running = subprocess.Popen(
        command, cwd=ROOT, env=env, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    output, _ = running.communicate(timeout=120)
    return running.returncode, output


@pytest.fixture(scope="module")
def reference(digits, tmp_path_factory):
    out = tmp_path_factory.mktemp("reference") / "out"
    status, output = convert(digits[0], out)
    assert status == 0
    assert output.startswith(f"train: 1,429 records, 1.48 MB in {NUM_SHARDS} shards, ")
    return out


@pytest.mark.long
@pytest.mark.parametrize(("moment", "processes"), CASES, ids=lambda value: str(value).replace(" ", "-"))
def test_a_killed_conversion_goes_on_to_the_same_bytes(
    digits, reference, tmp_path, shard_digests, capsys, moment, processes
):
    out = tmp_path / "out"
    status, _ = convert(digits[0], out, processes, kill_at=MOMENTS[moment])
    assert status == -signal.SIGKILL
    before = {path.name: path.stat().st_ino for path in out.glob("train-*")}
    finished = [name for name in before if (out / f"_shards/{name}.json").exists()]
    half_written = len(list(out.rglob(".*.tmp")))
    committed = (out / "manifest.json").exists()

    status, output = convert(digits[0], out, processes)
    assert status == 0, output
    assert shard_digests(out) == shard_digests(reference)
    assert {name: (out / name).stat().st_ino for name in finished} == {name: before[name] for name in finished}
    assert not list(out.rglob("*.tmp"))
    with capsys.disabled():
        print(f"\nkilled, {processes} worker(s): {moment}; {len(finished)} of {NUM_SHARDS} shards kept, "
              f"{half_written} files half-written, committed: {committed}", end=" ")  # fmt: skip


def test_every_moment_is_one_that_a_conversion_passes(reference):
    """A pattern that matches nothing would kill nothing; the SIGKILL above says so only once it is run."""
    assert len(list(reference.glob("train-*"))) == NUM_SHARDS
    left = [*reference.rglob("*"), reference / verdict_file("train", "of-a-run")]  # its launcher has fetched it
    assert all(any(path.match(pattern.partition(":")[2]) for path in left) for pattern in MOMENTS.values())
