"""A training that cannot resume where it was says which flags and settings it was saved with."""

from typing import Any

import pytest

from pipeline.errors import FingerprintError
from trainer.checkpointing.manager import Saved
from trainer.config import TrainerConfig
from trainer.inputs import InputInfo
from trainer.modes.session import resumed_position

NO_STATE: Any = None


class OtherOrder:
    """An input whose order is not the one that was saved."""

    def __init__(self, fingerprint):
        self.info = InputInfo({}, fingerprint)

    def restore(self, state):
        raise FingerprintError("The saved position has streams=64, this input streams=96. Pass streams=64.")


def refusal(fingerprint="data", **now):
    then = TrainerConfig(workdir="w", global_batch_size=64, seed=1).to_json()
    this = TrainerConfig(**{"workdir": "w", "global_batch_size": 64, "seed": 1} | now).to_json()
    source: Any = OtherOrder(fingerprint)
    with pytest.raises(FingerprintError) as raised:
        resumed_position(source, Saved(20, NO_STATE, {"fingerprint": "data", "streams": 64}, then), this)
    return str(raised.value)


@pytest.mark.parametrize(
    ("now", "flags"),
    [
        ({"global_batch_size": 96}, "--global-batch-size 64"),
        ({"global_batch_size": 96, "seed": 2}, "--global-batch-size 64 --seed 1"),
    ],
)
def test_another_batch_size_or_seed_names_the_flags_to_resume_with(now, flags):
    assert f"Resume with {flags} (global_batch_size=64" in refusal(**now)


@pytest.mark.parametrize(("fingerprint", "now"), [("other", {"global_batch_size": 96}), ("data", {})])
def test_other_data_or_another_reader_name_the_flags_of_the_data(fingerprint, now):
    assert "resume with the --data-dir and --train-split that it was trained on" in refusal(fingerprint, **now)
