"""A loss that suddenly rises is named in the log, with the command that shows the records of its step."""

import numpy as np
import pytest

from trainer.history.segments import hint_of
from trainer.modes.train_monitor import LossSpikes


@pytest.fixture
def usual():
    return 2.0 + 0.05 * np.random.default_rng(0).standard_normal(4000)


def test_a_spike_is_named_once_with_the_command_that_shows_its_records(usual, caplog):
    spikes = LossSpikes(hint_of("my runs/one"))
    usual[150] = 4.0
    for at in range(0, 300, 10):
        spikes.observe(at, usual[at : at + 10])
    (record,) = caplog.records
    assert record.getMessage() == (
        f"step 151: the loss of 4 is far above the usual {np.median(usual[:150]):.4g}. To list its records by loss, "
        "run: python -m trainer.seen 'my runs/one' --step 151 --losses"
    )


@pytest.mark.parametrize("noise", [1.0, 4.0])
def test_noise_a_falling_loss_and_non_finite_losses_are_no_spikes(usual, caplog, noise):
    falling = 5 * np.exp(-np.arange(4000) / 500) + noise * (usual - 2)
    falling[::97] = np.nan
    falling[700:707] = np.nan  # all of a dispatch
    spikes = LossSpikes(hint_of("run"))
    for at in range(0, 4000, 7):
        spikes.observe(at, falling[at : at + 7])
    assert not caplog.records


@pytest.mark.parametrize("usual", [0.0, 2.0])
def test_constant_losses_give_no_basis_for_detecting_spikes(caplog, usual):
    spikes = LossSpikes(hint_of("run"))
    spikes.observe(0, np.full(100, usual))
    spikes.observe(100, np.array([usual + 1e-9]))
    spikes.observe(101, np.array([1.5 * usual]))
    assert not caplog.records


def test_losses_that_vary_by_factors_are_no_spikes_unless_they_leave_their_range(caplog):
    losses = 1e-4 * np.exp(np.random.default_rng(0).standard_normal(4000))
    spikes = LossSpikes(hint_of("run"))
    for at in range(0, 4000, 10):
        spikes.observe(at, losses[at : at + 10])
    assert not caplog.records
    spikes.observe(4000, np.array([1.0]))
    assert len(caplog.records) == 1


def test_a_rise_of_less_than_a_fifth_is_no_spike_although_losses_hardly_vary(usual, caplog):
    steady = 2.0 + 1e-4 * (usual - 2.0)
    spikes = LossSpikes(hint_of("run"))
    spikes.observe(0, steady[:100])
    spikes.observe(100, np.array([2.38]))
    assert not caplog.records
    spikes.observe(101, np.array([2.42]))
    assert len(caplog.records) == 1


def test_spikes_of_negative_losses_are_detected(usual, caplog):
    spikes = LossSpikes(hint_of("run"))
    spikes.observe(0, -2.0 + 1e-4 * (usual[:100] - 2.0))
    spikes.observe(100, np.array([-1.7]))
    assert not caplog.records
    spikes.observe(101, np.array([-1.5]))
    assert len(caplog.records) == 1


def test_a_loss_that_jumps_repeatedly_is_reported_only_a_few_times(usual, caplog):
    usual[100::40] = 9.0
    spikes = LossSpikes(hint_of("run"))
    for at in range(0, 4000, 10):
        spikes.observe(at, usual[at : at + 10])
    assert 2 <= len(caplog.records) <= 5


def test_an_early_jump_is_not_compared_with_too_few_losses(caplog):
    spikes = LossSpikes(hint_of("run"))
    spikes.observe(0, np.array([2.0] * 20 + [50.0]))
    assert not caplog.records
