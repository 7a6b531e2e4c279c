"""When one host fails, every host ends, soon, and with the reason; before training begins if it could be known."""

import shutil

import pytest
from stages import without_beam

from converters import imagenet_to_gcs
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.slow

BOUND = 12.0  # host_timeout_seconds
COLLECTIVE = "[Gloo] Rank"  # what the first collective of a process prints as it connects


@pytest.fixture
def broken(run_hosts):
    """Runs a function of the workers with a host that fails; nobody may hang."""

    def run(function, count, **order):
        return run_hosts(function, count, timeout_seconds=150, host_timeout_seconds=BOUND, **order)

    return run


@pytest.fixture
def copies(digits, tmp_path):
    """(good, bad): two copies of the digits, the bad one with a flipped bit in its index."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    for copy in (good, bad):
        shutil.copytree(digits[1], copy)
    index = bad / "_index" / "train.npy"
    data = bytearray(index.read_bytes())
    data[-1] ^= 1
    index.write_bytes(data)
    return str(good), str(bad)


@pytest.fixture(scope="module")
def disagreed(run_hosts, digits, tmp_path_factory):
    """([Ended of each process], another directory of data that one of them had)"""
    other = str(tmp_path_factory.mktemp("other") / "data")
    flags = f"--raw-data-dir={digits[0]} --label-file={digits[0]}/synsets.txt"
    flags += f" --gcs-output-path={other} --target-shard-bytes=300KB"
    with without_beam():
        imagenet_to_gcs.main(flags.split())
    # As under a launcher that has initialized jax.distributed.
    order = {"launched": True, "host_timeout_seconds": BOUND}
    order |= {"data_dir": str(digits[1]), "wrong_dir": other}
    ended = run_hosts("disagreements", 2, host=1, timeout_seconds=150, **order)
    for process in ended:
        assert process.code == 0, process.printed
    return ended, other


def test_hosts_that_do_not_agree_are_told_what_differs_and_may_go_on(disagreed, digits):
    ended, other = disagreed
    expected = {
        "seed": "seed is 3 on host 0 and 4 on host 1.",
        "iterations_per_loop": "iterations_per_loop is 5 on host 0 and 4 on host 1.",
        "spec": "the batch's image is uint8 [8, 8] per row on host 0 and uint8 [4, 8] per row on host 1.",
        "model": "model and optimizer is 9 arrays with checksum ",
        "data": f"fingerprint is {fingerprint(digits[1])} on host 0 and {fingerprint(other)} on host 1.",
        "steps": "end step is 5 on host 0 and 6 on host 1.",
    }
    for process in ended:
        for name, text in expected.items():
            error = process.report[name]
            assert error.startswith(f"DisagreementError: the hosts do not agree: {text}")
            assert error.endswith("Start the same command on every host, on the same data.")
        before, after = process.printed.split("now all agree")
        assert COLLECTIVE not in before
        assert COLLECTIVE in after
        assert process.report["at last"] == 5


def test_training_until_the_input_ends_ends_everywhere_with_the_shortest_input(disagreed):
    for process in disagreed[0]:
        assert process.report["uneven"] == process.report["straight"]
    ended = "the input of another host ended at step 12: this host's later batches are left out"
    assert ended in disagreed[0][0].printed


def test_padding_on_one_host_that_changes_the_metrics_is_an_error_on_all(disagreed):
    for process in disagreed[0]:
        one = "check_padding is False on host 0 and True on host 1. Start the same"
        assert one in process.report["one"]
        every = "EvaluationError: check_padding: with the largest values in place of"
        assert process.report["all"].startswith(every)


def test_a_wrong_index_on_one_host_is_an_error_on_all_before_any_collective(broken, copies):
    count, host = 2, 1
    ended = broken("wrong_index", count, host=host, data_dir=copies[0], wrong_dir=copies[1])
    for index, process in enumerate(ended):
        # A host that is slow to raise, on a busy machine, is ended by its supervision, with the same words.
        assert process.code in ((1,) if index == host else (1, 3)), process.printed
        assert COLLECTIVE not in process.printed
        error = process.report["error"] if process.code == 1 else process.printed
        assert "train.npy" in error
        assert ("ShardError: " if index == host else f"host {host} of {count} failed: ") in error


def fingerprint(directory):
    return read_manifest(str(directory)).splits["train"].fingerprint


def test_a_flag_that_is_wrong_on_one_host_ends_the_command_on_all_with_one_line(
    run_commands, digits, tmp_path
):
    common = [f"--data-dir={digits[1]}", f"--workdir={tmp_path / 'model'}"]
    sizes = [[*common, f"--global-batch-size={size}"] for size in (64, 63)]
    first, second = run_commands(sizes)
    nearest = "Nearest that are: 62, 64."
    refused = f"global_batch=63 is not divisible by 2 devices (2 hosts x 1). {nearest}"
    assert second.code == 2
    assert first.code in (2, 3)  # 3 where the import of TensorFlow took longer than it may
    assert second.printed.endswith(f"error: {refused}\n")
    assert f"error: host 1 of 2 failed: {refused}" in first.printed.splitlines()[-1]
