"""What a work directory in a bucket asks for, before anything is trained."""

import importlib.util

import pytest

from pipeline.shards.errors import OptionError
from trainer.checkpoint import Checkpoints


@pytest.fixture
def without(monkeypatch):
    """without("name", ...): as if these packages were not installed."""
    find_spec = importlib.util.find_spec

    def hide(*names):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name in names else find_spec(name))

    return hide


def test_checkpoints_in_a_bucket_without_a_library_that_reaches_it_name_the_extras(without):
    without("tensorflow", "gcsfs")
    with pytest.raises(OptionError, match=r"'gs://bucket/run': .* need TensorFlow or gcsfs\. .* 'infeed\[read\]'"):
        Checkpoints("gs://bucket/run")


def test_a_tensorflow_that_etils_was_told_not_to_use_does_not_count(without, monkeypatch):
    without("gcsfs")
    monkeypatch.setenv("EPATH_USE_TF", "false")
    with pytest.raises(OptionError, match="need TensorFlow or gcsfs"):
        Checkpoints("gs://bucket/run")


def test_checkpoints_on_disk_need_neither(without, tmp_path):
    without("tensorflow", "gcsfs")
    assert Checkpoints(str(tmp_path)).latest() is None
