"""Where records come from, as JSON, and the same records again."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from pipeline.datasets import cached, mixture, open_dataset
from pipeline.errors import ShardError
from pipeline.inputs.provenance import Origin, origins_of, reopened
from pipeline.sources.records import fetch


def payloads(records, ids):
    return [record.payload for record in fetch(records, np.asarray(ids))]


def again(records):
    """Every payload, by way of the origins as JSON."""
    origins = [Origin(**json.loads(json.dumps(asdict(origin)))) for origin in origins_of(records)]
    return [payload for origin in origins for payload in payloads(reopened(origin), range(origin.first, origin.stop))]


@pytest.mark.parametrize(
    "opened",
    [
        lambda data: open_dataset(data, "train"),
        lambda data: open_dataset(data, "train[3:]+validation[:5]+train[:2]"),
        lambda data: open_dataset(data, "train[3:]")[2:9],
        lambda data: cached(open_dataset(data, "validation"), "ram"),
        lambda data: mixture([open_dataset(data, "train[4:]"), open_dataset(data, "validation")], [1, 2]).records,
    ],
    ids=["a split", "parts", "a slice of a part", "a cache", "a mixture"],
)
def test_origins_lead_to_the_same_records_in_the_same_order(digits, opened):
    records = opened(str(digits[1]))
    assert again(records) == payloads(records, range(records.info.num_records))


def test_arrays_have_an_origin_that_cannot_be_opened():
    (origin,) = origins_of(open_dataset({"x": np.arange(7)}))
    assert (origin.first, origin.stop, origin.directory) == (0, 7, None)
    with pytest.raises(ShardError, match=r"arrays \(x\) has no manifest, so it cannot be opened again to name its rec"):
        reopened(origin)


def test_other_data_in_the_same_place_are_an_error(digits):
    (origin,) = origins_of(open_dataset(str(digits[1]), "train"))
    other = Origin(**(asdict(origin) | {"fingerprint": "of other data"}))
    with pytest.raises(ShardError, match="the run read of other data\\. The data have been .* --data-dir"):
        reopened(other)
