"""Settings are checked where they are made."""

import json
from dataclasses import replace

import pytest

from pipeline.errors import OptionError
from trainer.config import TrainerConfig


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workdir": ""}, "workdir is empty"),
        (
            {"workdir": "s3://bucket/run"},
            "workdir='s3://bucket/run' is neither a local directory nor in a bucket. Give",
        ),
        ({"workdir": "gs:/bucket/run"}, "neither .* a path on a local disk, or gs://bucket/dir"),
        ({"workdir": "gs:///run"}, "workdir='gs:///run' is neither"),
        ({"global_batch_size": 0}, "global_batch_size=0 must be an int above 0"),
        ({"iterations_per_loop": "10"}, "iterations_per_loop='10' is not a time. Give a number above 0 with its unit"),
        ({"iterations_per_loop": 0}, "iterations_per_loop=0 must be an int above 0"),
        ({"max_time": "0s"}, "max_time='0s' is not a time"),
        ({"peak_tflops": 0.0}, "peak_tflops=0.0 must be above 0"),
        ({"checkpoint_every": 600}, "checkpoint_every=600 is not a time. .* such as 30s or 1.5h"),
        ({"on_nan": "stop"}, "on_nan='stop' is not one of raise, skip, ignore"),
        ({"eval_batch_size": 1.5}, r"eval_batch_size=1\.5 must be an int"),
        ({"checkpoint_every_steps": -1}, "checkpoint_every_steps=-1 must be an int above 0"),
        ({"max_steps": True}, "max_steps=True must be an int"),
        ({"keep_max": 0}, "keep_max=0"),
        ({"log_every": 0}, "log_every=0"),
        ({"superbatch_bytes": 0}, "superbatch_bytes=0"),
        ({"loop_mode": "fast"}, "loop_mode='fast' is not one of auto, scan, step"),
        (
            {"profile_steps": "100"},
            "profile_steps='100' is not two steps, the second above the first. Give .*'100:120'",
        ),
        ({"profile_steps": "20:20"}, "profile_steps='20:20' is not two steps"),
        ({"compilation_cache_dir": "gs://b/x"}, "compilation_cache_dir='gs://b/x' is not a local directory. Give one"),
        ({"batch_axis": [3, 0]}, r"batch_axis=\[3, 0\] is not a dict of axes by name, as in {'image': 3}"),
        ({"batch_axis": {"image": -1}}, r"batch_axis\['image'\]=-1 must be an int of at least 0, the first axis"),
        ({"batch_axis": {"image": True}}, r"batch_axis\['image'\]=True must be an int"),
        ({"batch_axis": {"image": "3"}}, r"batch_axis\['image'\]='3' must be an int"),
        (
            {"batch_axis": {"_mask": 1}},
            "batch_axis names '_mask', but keys that begin with _ have rows first. Remove it",
        ),
        ({"overfit_batches": 0}, "overfit_batches=0 must be an int above 0"),
        ({"fast_dev_run": 0}, "fast_dev_run=0 must be an int above 0"),
        ({"seed": -1}, r"seed=-1 is not an int in 0\.\.2\*\*32 - 1"),
    ],
)
def test_a_bad_setting_is_named_with_what_is_allowed(settings, text):
    with pytest.raises(OptionError, match=text):
        TrainerConfig(**{"workdir": "w", "global_batch_size": 8} | settings)


def test_the_evaluation_batch_is_the_training_batch_unless_given():
    assert TrainerConfig(workdir="w", global_batch_size=8).to_json()["eval_batch_size"] == 8
    assert TrainerConfig(workdir="w", global_batch_size=8, eval_batch_size=4).to_json()["eval_batch_size"] == 4


@pytest.mark.parametrize("workdir", ["gs://bucket/run", "gs://bucket", "run", "/run:1/x", "C:/run"])
def test_a_work_directory_may_be_on_disk_or_in_a_bucket(workdir):
    assert TrainerConfig(workdir=workdir, global_batch_size=8).workdir == workdir


def test_settings_with_a_batch_axis_are_hashed_compared_and_saved():
    one, other = (TrainerConfig(workdir="w", global_batch_size=8, batch_axis={"image": axis}) for axis in (3, 1))
    assert one == replace(one)
    assert hash(one) == hash(replace(one))
    assert one != other
    assert json.loads(json.dumps(one.to_json()))["batch_axis"] == {"image": 3}
