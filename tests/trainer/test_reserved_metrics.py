"""Names that a metric cannot have: files of a work directory have values of these names."""

from dataclasses import asdict

import pytest

from pipeline.errors import OptionError
from trainer.events.progress import Speed
from trainer.results import EvalResult
from trainer.task import Task

RESULT = EvalResult(1, {}, 2, 2, 0, 2, 3, 3, 1.0)
IN_A_LINE = {"step", "loss", "grad_norm", *Speed(1.0, 2.0, 0.0, 0.5).scalars()}
IN_A_RESULT = {*asdict(RESULT), "proven", "split", "checkpoint_path"} - {"metrics", "arrays", "totals"}


@pytest.mark.parametrize("name", sorted(IN_A_LINE | IN_A_RESULT))
def test_a_metric_cannot_have_the_name_of_another_value_in_the_same_file(name):
    with pytest.raises(OptionError, match=rf"named '{name}'\. .* are reserved; choose another"):
        Task(lambda *_: None, lambda *_: None, None, {name: lambda *_: None})  # pyright: ignore[reportArgumentType]
