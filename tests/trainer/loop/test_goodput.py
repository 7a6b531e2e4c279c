"""Goodput, and when training began."""

from trainer.loop.train_loop import first_began
from trainer.reports.segments import Start, append
from trainer.results import Goodput


def test_the_share_is_that_of_the_wall_time():
    assert Goodput(50.0, 200.0).share == 0.25


def test_training_began_with_the_first_run_in_the_work_directory(tmp_path):
    workdir = str(tmp_path)
    assert first_began(workdir, now=1000.5) == 1000.5
    for minute in range(2):
        append(
            workdir,
            Start(0, f"1970-01-01T00:0{minute}:30+00:00", {}, None, {}, None, {}, "1 x cpu"),
        )
    assert first_began(workdir, now=1300.0) == 30
