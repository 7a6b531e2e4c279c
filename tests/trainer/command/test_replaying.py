"""How a replayed loss compares with the reported one."""

import math

import pytest

from trainer.command.replaying import verdict


@pytest.mark.parametrize(
    ("loss", "reported", "told"),
    [
        (0.5, 0.5, "mean loss 0.5, bit-identical to metrics.jsonl"),
        (0.1, 0.10000000149011612, "mean loss 0.1, bit-identical to metrics.jsonl"),  # float32 of 0.1
        (math.nan, math.nan, "mean loss nan, bit-identical to metrics.jsonl"),
        (0.5, None, "mean loss 0.5; metrics.jsonl has none to compare it with"),
        (0.5, 0.5001, "mean loss 0.5; 0.5001 in metrics.jsonl (a relative difference of 0.0002, from rounding)"),
        (0.5, 0.51, "mean loss 0.5, but 0.51 in metrics.jsonl: this replay is not what the run computed. "),
        (math.nan, 0.5, "mean loss nan, but 0.5 in metrics.jsonl: this replay is not what the run computed. "),
        (0.5, math.nan, "mean loss 0.5, but nan in metrics.jsonl: this replay is not what the run computed. "),
    ],
)
def test_a_replay_states_whether_its_loss_is_bit_identical_to_the_run(loss, reported, told):
    assert verdict(loss, reported).startswith(told)
