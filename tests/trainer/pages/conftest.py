import numpy as np
import pytest
from run_directories import KILLED_AND_PREEMPTED, NOON

from trainer.events.metrics_file import MetricsFile
from trainer.history.segments import append
from trainer.pages.run_files import read_run


@pytest.fixture
def make_run(tmp_path):
    """make_run("a"): a run of 300 steps that was preempted at step 100, killed at step 220 and resumed from 200."""

    def make(name, lines=KILLED_AND_PREEMPTED, **scalars):
        directory = tmp_path / name
        for line in lines:
            append(str(directory), line)
        for first, last, began in ((1, 100, 0), (101, 220, 300), (201, 300, 600)):
            clock = iter(NOON + began + np.linspace(1, 59, last + 1 - first))
            metrics = MetricsFile(str(directory / "train"), first - 1, clock=lambda clock=clock: next(clock))
            for step in range(first, last + 1):
                metrics.scalars(step, {"loss": 1.0 / step, "speed/input_wait": step / 1000} | scalars)
            metrics.close()
        return read_run(str(directory), name)

    return make
