"""Settings are checked where they are made."""

import inspect
import json
import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.console.fields import field_texts
from pipeline.errors import OptionError
from trainer.checkpointing.warm_start import WarmStart
from trainer.config import Export, TrainerConfig
from trainer.optimizers.config import OptimizerConfig
from trainer.recipes.small_images import FashionMnist

POSITIVE = "global_batch_size keep_max log_every superbatch_bytes overfit_batches fast_dev_run"
POSITIVE += " iterations_per_loop peak_tflops"


@pytest.mark.parametrize(
    ("setting", "values"),
    [
        ("workdir", ["", "az://bucket/run", Path("gs://bucket/run"), "gs:///run"]),
        *((name, [0]) for name in POSITIVE.split()),
        ("eval_batch_size", [1.5]),
        ("accumulate", [None]),
        ("stall_seconds", [None, 0]),
        ("max_steps", [True]),
        ("checkpoint_every_steps", [-1]),
        ("iterations_per_loop", ["10"]),
        ("max_time", ["0s"]),
        ("checkpoint_every", [600]),
        ("on_nan", ["stop"]),
        ("loop_mode", ["fast"]),
        ("profile_steps", ["100", "20:20"]),
        ("compilation_cache_dir", ["gs://b/x"]),
        ("batch_axis", [[3, 0], {"image": -1}, {"image": True}, {"image": "3"}, {"_mask": 1}]),
        ("seed", [-1]),
    ],
)  # fmt: skip
def test_a_bad_setting_is_named_with_what_is_allowed(setting, values):
    for value in values:
        with pytest.raises(OptionError, match=setting):
            TrainerConfig(**{"workdir": "w", "global_batch_size": 8, setting: value})


def test_the_evaluation_batch_is_the_training_batch_unless_given():
    config = TrainerConfig(workdir="w", global_batch_size=8)
    assert config.to_json()["eval_batch_size"] == 8
    assert replace(config, eval_batch_size=4).to_json()["eval_batch_size"] == 4


@pytest.mark.parametrize("workdir", ["gs://bucket/run", "gs://bucket", "run", "/run:1/x", "C:/run"])
def test_a_work_directory_may_be_on_disk_or_in_a_bucket(workdir):
    assert TrainerConfig(workdir=workdir, global_batch_size=8).workdir == workdir


def test_directories_may_be_paths_and_are_saved_as_text():
    paths: Any = dict.fromkeys(("workdir", "cache", "compilation_cache_dir"), Path("runs/a"))
    saved = json.loads(json.dumps(TrainerConfig(global_batch_size=8, **paths).to_json()))
    assert {saved[name] for name in paths} == {"runs/a"}


def test_settings_with_a_batch_axis_are_hashed_compared_and_saved():
    config = TrainerConfig(workdir="w", global_batch_size=8)
    one, other = (replace(config, batch_axis={"image": axis}) for axis in (3, 1))
    assert one == replace(one)
    assert hash(one) == hash(replace(one))
    assert one != other
    assert json.loads(json.dumps(one.to_json()))["batch_axis"] == {"image": 3}


@pytest.mark.parametrize("kind", [TrainerConfig, Export, OptimizerConfig, WarmStart])
def test_help_shows_every_field_once(kind):
    shown = re.findall(r"^    (\w+): ", inspect.getdoc(kind) or "", re.MULTILINE)
    assert shown == [field.name for field in fields(kind)]


def test_a_field_has_the_docstring_of_the_class_that_declares_it_last():
    texts = field_texts(FashionMnist)
    assert texts["data_dir"].startswith("Directory with the shards")  # of DataRecipe
    assert texts["eval_split"] == "What to evaluate and predict: test, train[90%:]."  # of Mnist
    assert "mirror" in texts
