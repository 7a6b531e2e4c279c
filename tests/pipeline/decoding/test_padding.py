"""Features of any length in batches: pad_to."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import eval_dataset
from pipeline.decoding.decode import Decoder
from pipeline.decoding.padding import PadTo
from pipeline.errors import SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec

SCHEMA = Schema(
    "boxes",
    {
        "id": Feature("int64"),
        "xmin": Feature("float32", (None,)),
        "label": Feature("int64", (None,), optional=True),
        "word": Feature("bytes", (None,), optional=True),
    },
)
KEY = "image/object/bbox/xmin"


def record(xmin, label=None) -> dict:
    return {"id": 1, "xmin": xmin} | ({} if label is None else {"label": label})


def decoded(decoder: Decoder, records: list[dict], index: list[int]) -> dict[str, np.ndarray]:
    seeds = np.zeros((len(records), decoder.num_ops, 2), np.int32)
    return decoder([encode_example(SCHEMA, r) for r in records], seeds, np.array(index, np.int32))


LABELS = Decoder(
    SCHEMA, 3, pad_to={"label": PadTo(4, value=-1, truncate=True, length_into="count")}
)


@settings(max_examples=examples(40))
@given(st.lists(st.lists(st.integers(-9, 9), max_size=7), max_size=3))
def test_a_row_is_the_records_values_then_the_pad_value(rows):
    index = [*range(len(rows)), *[-1] * (3 - len(rows))]
    batch = decoded(LABELS, [record([], row) for row in rows], index)
    for row, values, count in zip(
        rows + [[]] * 3, batch["label"].tolist(), batch["count"].tolist(), strict=False
    ):
        assert count == min(len(row), 4)
        assert values == [*row[:4], *[-1] * (4 - count)]


def test_a_plain_length_pads_with_zero_and_the_spec_knows_before_reading():
    decoder = Decoder(SCHEMA, 3, pad_to={"xmin": 2, "label": PadTo(3, value=-1)})
    assert {
        key: (s.shape, s.dtype.name, s.pad) for key, s in decoder.spec.items() if key[0] != "_"
    } == {"id": ((3,), "int32", 0), "xmin": ((3, 2), "float32", 0), "label": ((3, 3), "int32", -1)}
    batch = decoded(decoder, [record([0.5], [7, 8, 9]), record([0.25, 1])], [0, 1, -1])
    assert batch["xmin"].tolist() == [[0.5, 0], [0.25, 1], [0, 0]]
    # An optional feature that is absent, and a row of padding, are as a row without values.
    assert batch["label"].tolist() == [[7, 8, 9], [-1, -1, -1], [-1, -1, -1]]


def test_a_row_of_padding_may_have_another_value():
    pad_to = {"xmin": PadTo(2, value=np.nan)}
    batch = decoded(
        Decoder(SCHEMA, 2, pad_to=pad_to, pad_values={"xmin": 5}), [record([1])], [0, -1]
    )
    np.testing.assert_array_equal(batch["xmin"], [[1, np.nan], [5, 5]])


@dataclass(frozen=True)
class Mean:
    """Reads a padded row and its length."""

    reads: tuple[str, ...] = ("xmin", "count")

    def output_spec(self, specs):
        assert specs["xmin"].shape == (4,)
        assert specs["count"] == ArraySpec((), np.dtype(np.int32))
        return {"mean": ArraySpec((), np.dtype(np.float32))}

    def __call__(self, features, rng):
        assert features["xmin"].shape == (4,)
        return {"mean": np.float32(features["xmin"].sum() / features["count"])}


@pytest.mark.parametrize("keys", [("mean",), ("mean", "xmin"), ("mean", "count")])
def test_an_op_gets_the_padded_row_and_its_length(keys):
    decoder = Decoder(
        SCHEMA, 2, ops=[Mean()], keys=keys, pad_to={"xmin": PadTo(4, length_into="count")}
    )
    batch = decoded(decoder, [record([1, 2, 6]), record([4])], [0, 1])
    assert batch.keys() == set(keys)
    assert batch["mean"].tolist() == [3, 4]


def test_the_length_can_be_requested_without_the_padded_feature():
    decoder = Decoder(SCHEMA, 2, keys=["count"], pad_to={"xmin": PadTo(4, length_into="count")})
    assert decoded(decoder, [record([1, 2, 6])], [0, -1])["count"].tolist() == [3, 0]
    with pytest.raises(SchemaError, match=r"'xmin' has more values than the 4 that pad_to allows"):
        decoded(decoder, [record([1] * 5)], [0, -1])


def test_a_row_that_is_too_long_is_an_error_that_names_the_record(write_dataset, tmp_path):
    records = [
        {"image/encoded": b"", "image/class/label": 1, "image/weight": [0, 0], KEY: [0.5] * n}
        for n in (1, 2, 4)
    ]
    directory = write_dataset(tmp_path, {"validation": [records]})
    text = rf"{KEY}' has more values than the 3 that pad_to allows\. .* PadTo\(3, truncate=True\)\. It has.*4"
    with pytest.raises(SchemaError, match=rf"validation-00000-of-00001.* record 2.*'{text}"):
        next(eval_dataset(directory, global_batch=4, keys=[KEY], pad_to={KEY: 3}).batches())
    (batch,) = eval_dataset(directory, global_batch=4, keys=[KEY], pad_to={KEY: 4}).batches()
    assert (batch[KEY] != 0).sum(1).tolist() == [1, 2, 4, 0]
