"""Which records a step saw: compared with those that were recorded while it was trained."""

import json
import random
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from damage import flip_payload_bits
from recorded_inputs import LABEL, Recorded, labels_task

from pipeline.datasets import mixture, open_dataset, train_dataset
from pipeline.errors import NanError, OptionError
from trainer.commands import seen
from trainer.config import TrainerConfig
from trainer.reports.seen_records import seen_steps
from trainer.reports.segments import read_history
from trainer.task import Task, Variables
from trainer.trainer import Trainer

jax.config.update("jax_num_cpu_devices", 4)

DAMAGED = {"train": (7, 8, 500, 1428), "validation": (0, 30)}  # 1428 is the last of its split


@pytest.fixture(scope="module")
def damaged(digits, tmp_path_factory):
    directory = shutil.copytree(digits[1], tmp_path_factory.mktemp("damaged") / "data")
    for split, numbers in DAMAGED.items():
        flip_payload_bits(str(directory), split, *numbers)
    return str(directory)


def a_mixture(directory):
    sources = [open_dataset(directory, "train[5:]"), open_dataset(directory, "validation")]
    options = {"seed": 3, "streams": 16, "on_error": "skip"}
    return lambda given: train_dataset(mixture(sources, [3, 1]), **options, **given)


def across_epochs(directory):
    """Of 200 records and another 50, so every few batches an epoch ends inside one."""
    both = open_dataset(directory, "train[1300:]+validation[:71]")
    options = {"seed": 4, "streams": 16, "epochs": "span", "on_error": "mask"}
    return lambda given: train_dataset(both, **options, **given)


def trained(directory, make, workdir, devices):
    """step -> records, over three runs: the second and third resume, with batches of another size."""
    recorded = Recorded(make(directory))
    for batch, end in ((32, 17), (48, 40), (48, 61)):
        settings = {"iterations_per_loop": 4, "checkpoint_every_steps": 10}
        config = TrainerConfig(workdir=str(workdir), global_batch_size=batch, **settings)
        Trainer(labels_task(), config, jax.devices()[:devices]).train(recorded, max_steps=end)
        recorded.seen = {step: records for step, records in recorded.seen.items() if step <= end}
    assert sorted(recorded.seen) == list(range(1, 62))
    return recorded.seen


@pytest.fixture(scope="module")
def run(damaged, tmp_path_factory):
    """(work directory, what each step saw) of a run on the mixture, on one device. Do not change it."""
    workdir = tmp_path_factory.mktemp("run")
    return str(workdir), trained(damaged, a_mixture, workdir, 1)


@pytest.mark.parametrize(
    ("make", "devices"),
    [(a_mixture, 1), pytest.param(across_epochs, 4, marks=pytest.mark.slow)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_seen_lists_the_records_that_each_step_was_trained_on(
    damaged, run, tmp_path, make, devices
):
    workdir, truth = run
    if (make, devices) != (a_mixture, 1):
        workdir, truth = str(tmp_path), trained(damaged, make, tmp_path, devices)
    history = read_history(workdir)
    assert [start.step for start in history.starts] == [0, 17, 40]
    assert {start.devices for start in history.starts} == {f"{devices} x cpu, 1 process"}
    for step in random.Random(devices).sample(sorted(truth), 25):
        (seen,) = seen_steps(history, workdir, range(step, step + 1))
        assert [record.index for record in seen.records] == truth[step]
    steps = seen_steps(history, workdir, range(1, 62))
    everything = [record for seen in steps for record in seen.records]
    expected = [number for step in sorted(truth) for number in truth[step]]
    assert [record.index for record in everything] == expected
    special = {record.note.rpartition(" ")[0] for record in everything}
    assert special == {"", "in place of bad record"} if make is a_mixture else {"", "left out as"}


def test_the_place_the_key_and_the_label_are_those_of_the_record(damaged, run):
    (seen,) = seen_steps(read_history(run[0]), run[0], range(50, 51))
    assert {record.place.split for record in seen.records} == {"train", "validation"}
    mixed = [open_dataset(damaged, "train[5:]"), open_dataset(damaged, "validation")]
    for record in seen.records:
        source = open_dataset(damaged, record.place.split)
        example = source.examples()[record.place.record]
        second, first = record.index >= len(mixed[0]), len(mixed[0])
        known = mixed[second].examples()[record.index - first * second]
        assert known["image/filename"] == example["image/filename"]
        at = source.source.index.locate(np.array([record.place.record]))
        assert (record.place.shard_record, record.place.offset) == (at.record[0], at.offset[0])
        assert record.place.shard == source.source.entry.shards[at.shard[0]].file
        assert record.place.key.endswith(f"/{example['image/filename'].decode()}")
        assert record.place.label.split()[0] == str(example[LABEL])


def test_the_error_of_a_step_that_is_not_finite_names_the_command(damaged, tmp_path):
    def loss_fn(variables, batch, rng, train):
        return jnp.log(variables.params - jnp.zeros(32)), variables, None

    broken = Task(lambda rng, spec: Variables(jnp.float32(-1)), loss_fn, optax.sgd(0.1))
    config = TrainerConfig(workdir=str(tmp_path), global_batch_size=32)
    command = rf"\. To list its records, run: infeed seen {tmp_path} --step 1$"
    with pytest.raises(NanError, match=command):
        Trainer(broken, config).train(Recorded(across_epochs(damaged)), max_steps=2)


def test_the_command_prints_a_table_or_lines_of_json(run, capsys):
    workdir, truth = run
    seen.main([workdir, "--step=20", "--rows=3"])
    printed = capsys.readouterr().out
    assert "Step 20, mean loss " in printed
    assert ": 48 records; the first 3:" in printed
    rows = [line.split()[1] for line in printed.splitlines() if "-of-" in line]
    assert rows == [str(number) for number in truth[20][:3]]
    seen.main([workdir, "--step=20", "--to=21", "--json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["index"] for line in lines] == truth[20] + truth[21]
    seen.main([workdir, "--step=20", "--rows=2", "--json"])
    assert capsys.readouterr().out.splitlines() == [json.dumps(line) for line in lines[:2]]
    assert lines[0].keys() >= {"step", "row", "index", "epoch", "split", "label"}
    assert lines[0].keys() >= {"shard", "offset", "key"}


@pytest.mark.slow
def test_data_that_were_moved_are_found_with_data_dir_and_otherwise_only_numbers_are_known(
    damaged, tmp_path, capsys, caplog
):
    data = str(shutil.copytree(damaged, tmp_path / "data"))
    truth = trained(data, a_mixture, tmp_path / "run", 1)
    shutil.move(data, tmp_path / "elsewhere")
    (lost, *_) = lines_of(capsys, tmp_path / "run", "--step=5")
    assert (lost["index"], lost["shard"], lost["key"]) == (truth[5][0], None, "")
    assert f"cannot locate the records: {data}" in caplog.text
    there = f"--data-dir={tmp_path / 'elsewhere'}"
    (found, *_) = lines_of(capsys, tmp_path / "run", "--step=5", there)
    assert found["shard"]
    assert found["directory"] == str(tmp_path / "elsewhere")


def lines_of(capsys, *arguments):
    seen.main([*map(str, arguments), "--json"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_data_dir_locates_a_moved_source_of_a_mixture(damaged, tmp_path, capsys):
    here, there = (str(shutil.copytree(damaged, tmp_path / name)) for name in ("here", "there"))
    sources = [open_dataset(here, "train[5:]"), open_dataset(there, "validation")]
    options = {"streams": 16, "on_error": "skip"}
    recorded = Recorded(lambda given: train_dataset(mixture(sources, [1, 1]), **options, **given))
    config = TrainerConfig(workdir=str(tmp_path / "run"), global_batch_size=32)
    Trainer(labels_task(), config).train(recorded, max_steps=2)
    shutil.move(here, tmp_path / "moved")
    for path in (tmp_path / "moved").rglob("*validation*"):
        path.unlink()
    lines = lines_of(capsys, tmp_path / "run", "--step=2", f"--data-dir={tmp_path / 'moved'}")
    assert {line["directory"] for line in lines} == {str(tmp_path / "moved"), there}
    assert all(line["key"] for line in lines)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step=5", "--to=4"], r"--step=5 --to=4: give 1 to 10,000 steps, the first one first"),
        (["--step=5", "--rows=0"], r"--rows=0: must be at least 1"),
        (["--step=0"], r"step 0 does not exist"),
    ],
)
def test_bad_options_are_one_line(run, options, message):
    with pytest.raises(OptionError, match=message):
        seen.main([run[0], *options])


def test_seen_reads_a_work_directory_in_a_bucket(run, bucket, gcs_server, capsys):
    for name in ("segments.jsonl", "train/metrics.jsonl"):
        data = Path(run[0], name).read_bytes()
        gcs_server.write(bucket.removeprefix("gs://"), f"run/{name}", data)
    assert [line["index"] for line in lines_of(capsys, f"{bucket}/run", "--step=20")] == run[1][20]
