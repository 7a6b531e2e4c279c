"""Goodput's parts: what it is unknown without, and the file that says when training began."""

import pytest

from pipeline.errors import CheckpointError
from trainer.modes.train_loop import TimeSpent, first_began
from trainer.results import Goodput


def test_the_time_of_earlier_runs_counts():
    goodput = TimeSpent(began=1000.0, earlier=30.0).goodput(20.0, now=1200.0)
    assert goodput == Goodput(50.0, 200.0)
    assert goodput.share == 0.25


def test_goodput_is_unknown_without_the_start():
    assert TimeSpent(None, 30.0).goodput(20.0, now=1200.0) is None


def test_the_first_start_time_of_a_training_is_kept_over_restarts(tmp_path):
    workdir = str(tmp_path / "run")
    assert [first_began(workdir, now) for now in (1000.5, 1300.0, 1400.0)] == [1000.5] * 3


def test_a_damaged_file_is_named_with_its_remedy(tmp_path):
    (tmp_path / "began.json").write_text('{"began": "then"}')
    with pytest.raises(CheckpointError, match=r"began\.json.*Remove it: it only records when training first began"):
        first_began(str(tmp_path), 1000.0)
