"""The learning rate by step: warm-up, fall, and the rules of scaling with the batch."""

import math

import pytest

from pipeline.errors import OptionError
from trainer.optimizers.build import learning_rate
from trainer.optimizers.config import OptimizerConfig, Run, steps_of

RUN = Run(max_steps=1000, global_batch_size=1024, records=lambda: 12_800)


def rates(steps, run=RUN, **settings):
    schedule = learning_rate(OptimizerConfig(learning_rate=1.0, **settings), run)
    return [float(schedule(step)) for step in steps]


def test_lengths_are_steps_epochs_or_shares():
    assert [steps_of(length, RUN) for length in ("500", "2ep", "0.5ep", "10%")] == [500, 25, 6, 100]
    with pytest.raises(OptionError, match="'2ep': the input does not know how long an epoch is"):
        steps_of("2ep", Run(1000, 64))


@pytest.mark.parametrize(
    ("settings", "formula"),
    [
        ({"schedule": "constant"}, lambda share: 1.0),
        ({"schedule": "cosine", "final_rate": 0.1}, lambda share: 0.1 + 0.9 * (1 + math.cos(math.pi * share)) / 2),
        ({"schedule": "linear", "final_rate": 0.1}, lambda share: 1 - 0.9 * share),
        ({"schedule": "polynomial", "final_rate": 0.1}, lambda share: 0.1 + 0.9 * (1 - share) ** 2),
    ],
)
def test_the_rate_warms_up_linearly_and_then_follows_its_schedule(settings, formula):
    steps = [0, 25, 99, 100, 101, 400, 550, 999, 1000]
    expected = [step / 100 if step < 100 else formula((step - 100) / 900) for step in steps]
    assert rates(steps, warmup="100", **settings) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_the_step_schedule_multiplies_the_rate_at_each_boundary():
    found = rates([0, 374, 376, 899, 901], schedule="step", warmup="0", decay_at=("30ep", "90%"), decay_factor=0.5)
    assert found == pytest.approx([1, 1, 0.5, 0.5, 0.25])


@pytest.mark.parametrize(("scaling", "factor"), [("none", 1), ("linear", 4), ("sqrt", 2)])
def test_the_rate_is_scaled_with_the_batch_size(scaling, factor):
    assert rates([0], schedule="constant", warmup="0", scaling=scaling) == [factor]


def test_a_warmup_longer_than_the_training_is_refused():
    with pytest.raises(OptionError, match="warmup='100%' takes 1000 steps, but the training has 1000. Shorten it"):
        rates([0], warmup="100%")
