"""Small batches are made several at a time: the same bits and order, no later, and errors in their place."""

import time
from dataclasses import dataclass

import numpy as np
import pytest
from bad_pictures import OPS
from host_batches import assert_same, taken
from sweep import SWEEP

from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import BatchSizeError, OptionError, SchemaError
from pipeline.hosts import Hosts
from pipeline.inputs.batches import batches_together
from pipeline.spec import ArraySpec

NUMBERS = {"number": np.arange(300), "half": np.arange(300) / 2}
ALONE = {"read_ahead_bytes": 1}


@dataclass(frozen=True)
class Each:
    """Takes `seconds` per record from record `slow` on, and fails at the record `bad`: raises, or returns nothing."""

    seconds: float = 0.0
    slow: int = 0
    bad: int = -1
    returns: bool = False
    reads = ("number",)

    def output_spec(self, specs):
        return {"twice": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        time.sleep(self.seconds * (features["number"] >= self.slow))
        if features["number"] == self.bad and self.returns:
            return None
        if features["number"] == self.bad:
            raise ValueError("of a user's own")
        return {"twice": 2 * int(features["number"])}


@pytest.mark.parametrize(
    ("options", "workers"),
    [
        ({"epochs": "span"}, 0),
        pytest.param({"epochs": "drop"}, 2, marks=pytest.mark.slow),
        ({"epochs": "span", "nested": True}, 0),
    ],
    ids=str,
)
def test_batches_made_together_have_the_bits_of_those_made_alone(options, workers):
    options |= {"global_batch": 7, "ops": [Each()], "seed": 2}
    expected = taken(train_dataset(NUMBERS, **options, **ALONE), count=100)
    together = train_dataset(NUMBERS, **options, workers=workers)
    assert together._together(0) > 10
    assert_same(taken(together, count=100), expected)
    middle = together.advance(together.start, 41)
    assert_same(taken(together, middle, 59), expected[41:])
    assert_same(
        *(
            taken(eval_dataset(NUMBERS, global_batch=7, workers=workers, **more))
            for more in ({}, ALONE)
        )
    )


@pytest.mark.parametrize("on_error", ["skip", "mask"])
def test_a_bad_record_among_batches_made_together_changes_only_its_row(pictures, on_error):
    options = {"global_batch": 2, "ops": OPS, "on_error": on_error, "seed": 1}
    sources = [train_dataset(pictures[1], **options, **more) for more in ({}, ALONE)]
    assert [source._together(0) for source in sources] == [256, 1]
    assert_same(*(taken(source, count=40) for source in sources))
    assert sources[0].quarantine == sources[1].quarantine


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("returns", "error"), [(False, SchemaError), (True, OptionError)])
def test_batches_before_that_of_a_bad_record_are_delivered(workers, returns, error):
    seen, op = [], Each(bad=100, returns=returns)
    with pytest.raises(error, match=r"of a user's own|returned None for a record"):
        seen.extend(eval_dataset(NUMBERS, global_batch=8, ops=[op], workers=workers).batches())
    assert len(seen) == 100 // 8


@pytest.mark.slow
@pytest.mark.parametrize("workers", [*[0] * SWEEP, 2])
def test_slow_ops_delay_no_batch_beyond_the_time_that_it_takes(workers):
    options = {
        "global_batch": 8,
        "ops": [Each(seconds=0.03)],
        "workers": workers,
    }
    batches = eval_dataset(NUMBERS, **options).batches()  # all together would take 9 s
    began = time.monotonic()
    next(batches)
    assert time.monotonic() - began < 7  # workers import for up to 4 s on a busy machine
    assert len(list(batches)) == 37


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_ops_that_become_slow_among_batches_made_together_are_no_stall(workers):
    # The first batches are so fast that all others are made together, which would take 7 s. The
    # first one may take long: workers start, with what they import.
    options = {
        "global_batch": 2,
        "ops": [Each(seconds=0.05, slow=160)],
        "workers": workers,
    }
    batches, waits, began = eval_dataset(NUMBERS, **options).batches(), [], time.monotonic()
    for _ in range(120):
        next(batches)
        waits.append(time.monotonic() - began)
        began = time.monotonic()
    batches.close()
    assert max(waits[1:]) < 2.5


@pytest.mark.parametrize("recipe", [train_dataset, eval_dataset])
def test_a_host_without_rows_is_one_error(recipe):
    with pytest.raises(BatchSizeError, match="hosts= gives this host no row of the batch"):
        recipe(NUMBERS, global_batch=8, hosts=Hosts(0, 1, 1, rows=()))


def test_only_small_batches_are_made_together():
    assert batches_together(64, 1_000, 2**30) == 8
    assert batches_together(64, 224 * 224 * 3, 2**30) == 1
    assert batches_together(64, 12_292, 2**30) == 2
    assert batches_together(64, 1_000, 100_000) == 1  # holds no more than it may
    assert batches_together(1_024, 4, 2**30) == 1
