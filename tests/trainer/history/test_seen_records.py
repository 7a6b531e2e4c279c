"""Records of a step as rows: with losses, the worst come first; as JSON, they can be read by any reader."""

import json

import numpy as np
import pytest

from pipeline.inputs.provenance import Origin
from trainer.history.seen_records import RecordPlace, RecordPlaces, SeenBatch, SeenRecord, step_of

SOURCE = [Origin("a generator", "f", 0, 100)]  # which cannot be opened again, so numbers are all that is known
REPLACED = np.array([-1, -1, -1, -1, 99, -1])


def seen(losses=None, most=None):
    """The batch of step 7: records 10 to 15; 12 is left out as bad, and 14 is in place of 99."""
    ids = np.arange(10, 16)
    batch = SeenBatch(7, SOURCE, ids, np.zeros(6, np.int64), REPLACED, ids == 12)
    return step_of(batch, RecordPlaces(SOURCE), None if losses is None else np.array(losses, np.float32), most)


def test_without_losses_records_are_in_row_order():
    records = seen().records
    assert [(record.row, record.index, record.place.record) for record in records] == [
        (row, 10 + row, 10 + row) for row in range(6)
    ]
    assert [record.note for record in records] == ["", "", "left out as bad", "", "in place of bad record 99", ""]


def test_losses_that_are_not_finite_come_first_then_the_largest_and_records_that_were_left_out_last():
    step = seen([1.0, 3.0, np.inf, np.nan, 2.0, -np.inf])
    assert {record.index for record in step.records[:2]} == {13, 15}
    assert [record.index for record in step.records[2:]] == [11, 14, 10, 12]
    assert step.records[-1].loss is None
    assert step.num_rows == 6
    assert [record.index for record in seen([6, 5, 4, 3, 2, 1], most=2).records] == [10, 11]


def test_a_record_that_has_no_part_in_the_mean_loss_comes_last_and_without_a_loss():
    losses = np.ma.array([1.0, np.nan, 2.0, np.nan, 3.0, 0.5], np.float32, mask=[False, True, *[False] * 4])
    batch = SeenBatch(7, SOURCE, np.arange(6), np.zeros(6, np.int64), REPLACED, np.zeros(6, bool))
    step = step_of(batch, RecordPlaces(SOURCE), losses)
    assert [record.index for record in step.records] == [3, 4, 2, 0, 5, 1]
    assert [record.index for record in step.records if record.loss is None] == [1]


@pytest.mark.parametrize(
    ("loss", "told"), [(0.5, 0.5), (np.nan, "NaN"), (np.inf, "Infinity"), (-np.inf, "-Infinity"), (None, None)]
)
def test_a_line_of_json_is_valid_whatever_the_loss(loss, told):
    line = json.dumps(SeenRecord(7, 0, 10, 0, RecordPlace(), loss).to_json(), allow_nan=False)
    assert json.loads(line).get("loss") == told
