"""One conversion on every runner that runs here: the same bytes, whoever dies on the way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from raw_data.imagenet import RawImagenet

ROOT = Path(__file__).parents[2]
FAULTS = ROOT / "tests/beam_jobs/faults"
SHARDS = ("--num_train_shards=5", "--num_validation_shards=2")

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return RawImagenet(tmp_path_factory.mktemp("raw")).write()


@pytest.fixture(scope="module")
def golden(raw, tmp_path_factory, shard_digests):
    """What every runner has to write, as one process wrote it."""
    out = tmp_path_factory.mktemp("golden")
    raw.convert(out, *SHARDS)
    digests = shard_digests(out)
    assert len(digests) == 5 + 2 + 2 + 1
    return digests


@pytest.fixture
def converted(raw, tmp_path, shard_digests):
    """converted(flag, ...): the digests of a conversion in this process."""

    def convert(*flags):
        raw.convert(tmp_path / "out", *SHARDS, *flags)
        return shard_digests(tmp_path / "out")

    return convert


@pytest.fixture
def run_command(raw, tmp_path):
    """run_command(flag, ..., kill_at=""): (status, output) of the real command; the first process there is killed."""

    def run(*flags, kill_at=""):
        command = [sys.executable, "-m", "converters.imagenet_to_gcs", f"--raw_data_dir={raw.directory}", *SHARDS]
        command += [f"--gcs_output_path={tmp_path / 'out'}", f"--label_file={raw.directory}/synsets.txt", *flags]
        kill = {"KILL_AT": kill_at, "KILL_ONE": str(tmp_path / "killed"), "KILL_ROOT": str(ROOT)}
        env = {**os.environ, **kill, "PYTHONPATH": str(FAULTS)}
        done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
        assert (tmp_path / "killed").exists()
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.parametrize("processes", [2, 4])
def test_worker_processes_write_the_same_bytes(converted, golden, processes):
    assert converted(f"--local_processes={processes}") == golden


@pytest.mark.parametrize("kill_at", ["half:train-00002-of-*5", "after:train.npy"], ids=["mid-shard", "in the commit"])
def test_a_worker_process_that_dies_ends_the_command_and_the_next_goes_on(
    run_command, converted, golden, tmp_path, kill_at
):
    status, output = run_command("--local_processes=2", kill_at=kill_at)
    assert status == 2
    assert "error: a worker process died: Worker subprocess exited with return code" in output
    assert "Traceback" not in output
    assert not (tmp_path / "out/manifest.json").exists()
    assert converted() == golden
