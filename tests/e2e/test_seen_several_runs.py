"""Which records a step saw where several runs trained such a step, with other settings or other data."""

import json
import shutil
from dataclasses import replace

import optax
import pytest
from damage import flip_payload_bits
from recorded_inputs import Recorded, labels_task

from pipeline.datasets import train_dataset
from pipeline.errors import NanError, OptionError
from trainer.commands import seen
from trainer.config import TrainerConfig
from trainer.reports.seen_records import seen_steps
from trainer.reports.segments import read_history
from trainer.trainer import Trainer


def test_after_the_data_were_repaired_no_record_is_named_as_bad(digits, tmp_path):
    data = str(shutil.copytree(digits[1], tmp_path / "data"))
    recorded = Recorded(lambda given: train_dataset(data, streams=16, on_error="skip", **given))
    config = TrainerConfig(workdir=str(tmp_path / "run"), global_batch_size=64)
    flip_payload_bits(data, "train", 7, 8, 500)
    for end in (23, 60):  # 22 steps are an epoch
        Trainer(labels_task(), config).train(recorded, max_steps=end)
        flip_payload_bits(data, "train", 7, 8, 500)  # back again
    steps = list(seen_steps(read_history(config.workdir), config.workdir, range(1, 61)))
    found = [[record.index for record in step.records] for step in steps]
    assert found == [recorded.seen[number] for number in range(1, 61)]
    assert {record.step <= 23 for step in steps for record in step.records if record.note} == {True}


def indices(capsys, workdir, step):
    seen.main([str(workdir), f"--step={step}", "--json"])
    return [json.loads(line)["index"] for line in capsys.readouterr().out.splitlines()]


@pytest.mark.slow
def test_a_run_that_went_back_and_failed_leaves_later_steps_to_the_run_before(
    digits, tmp_path, capsys
):
    recorded = Recorded(lambda given: train_dataset(str(digits[1]), streams=16, **given))
    given = {"workdir": str(tmp_path), "checkpoint_every_steps": 10, "iterations_per_loop": 2}
    trainer = Trainer(labels_task(), TrainerConfig(global_batch_size=16, **given))
    trainer.train(recorded, max_steps=30)
    first, failing = recorded.seen, replace(labels_task(), optimizer=optax.sgd(float("inf")))
    recorded.seen = {}
    back = TrainerConfig(global_batch_size=32, restore_step=10, **given)
    with pytest.raises(NanError):
        Trainer(failing, back).train(recorded, max_steps=30)
    told = {step: indices(capsys, tmp_path, step) for step in (10, 12, 25)}
    assert told == {10: first[10], 12: recorded.seen[12], 25: first[25]}
    trainer.train(recorded, max_steps=32)
    assert indices(capsys, tmp_path, 12) == first[12]
    history = read_history(str(tmp_path))
    assert [start.parent for start in history.starts] == [None, *[history.starts[0].run] * 2]
    ended = r"step 33 was not trained: .* ended at step 32 \(finished\)"
    with pytest.raises(OptionError, match=ended):
        seen.main([str(tmp_path), "--step=33"])
