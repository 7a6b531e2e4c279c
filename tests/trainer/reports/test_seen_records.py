"""Records of a step as rows, also where their source cannot be opened again."""

import json

import numpy as np

from pipeline.inputs.provenance import Origin
from trainer.reports.seen_records import RecordPlaces, SeenBatch, step_of

# which cannot be opened again, so numbers are all that is known
SOURCE = [Origin("a generator", "f", 0, 100)]
REPLACED = np.array([-1, -1, -1, -1, 99, -1])


def seen(most=None):
    """The batch of step 7: records 10 to 15; 12 is left out as bad, and 14 is in place of 99."""
    ids = np.arange(10, 16)
    batch = SeenBatch(7, SOURCE, ids, np.zeros(6, np.int64), REPLACED, ids == 12)
    return step_of(batch, RecordPlaces(SOURCE), most)


def test_records_are_in_row_order_and_say_what_is_special():
    records = seen().records
    assert [(record.row, record.index, record.place.record) for record in records] == [
        (row, 10 + row, 10 + row) for row in range(6)
    ]
    assert [record.note for record in records] == [
        "",
        "",
        "left out as bad",
        "",
        "in place of bad record 99",
        "",
    ]


def test_only_the_first_records_are_given_if_asked_and_the_step_knows_how_many_there_are():
    step = seen(most=2)
    assert ([record.index for record in step.records], step.num_rows) == ([10, 11], 6)


def test_a_record_is_flat_json():
    line = json.loads(json.dumps(seen().records[4].to_json()))
    assert (line["step"], line["row"], line["index"], line["record"]) == (7, 4, 14, 14)
    assert (line["replaces"], line["masked"], line["shard"], line["key"]) == (99, False, None, "")
