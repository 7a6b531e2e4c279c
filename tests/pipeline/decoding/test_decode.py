import io
from dataclasses import dataclass

import numpy as np
import pytest
from PIL import Image

from pipeline.datasets import eval_dataset
from pipeline.decoding.decode import Decoder
from pipeline.errors import SchemaError
from pipeline.ops import DecodePng, RandomFlip
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec
from trainer.recipes.tiny import tiny_images

FEATURES = {
    "id": Feature("int64"),
    "pair": Feature("float32", (2,)),
    "grid": Feature("int64", (2, 3)),
    "name": Feature("bytes"),
    "rank": Feature("int64", optional=True),
    "words": Feature("bytes", (None,), optional=True),
    "boxes": Feature("float32", (None,)),
}
SCHEMA = Schema("all", FEATURES)


@dataclass(frozen=True)
class CountBoxes:
    """An op over a feature of any length."""

    reads: tuple[str, ...] = ("boxes",)
    into: str = "count"

    def output_spec(self, specs):
        return {self.into: ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {self.into: np.size(features[self.reads[0]])}


def record(i: int) -> dict:
    return {
        "id": i,
        "pair": [i, -i],
        "grid": list(range(6)),
        "name": b"n%d" % i,
        "boxes": [0.5] * i,
    }


def decoded(decoder: Decoder, records: list[dict], index: list[int]) -> dict[str, np.ndarray]:
    seeds = np.zeros((len(records), decoder.num_ops, 2), np.int32)
    return decoder([encode_example(SCHEMA, r) for r in records], seeds, np.array(index, np.int32))


def test_by_default_a_batch_has_every_feature_that_it_can_have():
    spec = Decoder(SCHEMA, 3).spec
    assert {key: (s.shape, s.dtype.name) for key, s in spec.items()} == {
        "id": ((3,), "int32"),
        "pair": ((3, 2), "float32"),
        "grid": ((3, 2, 3), "int32"),
        "rank": ((3,), "int32"),
        "_mask": ((3,), "float32"),
        "_index": ((3,), "int32"),
        "_crc": ((3,), "uint32"),
    }


def test_only_what_ops_and_keys_need_is_parsed():
    # The record lacks everything else, which parsing would complain about.
    small = Schema("small", {"boxes": FEATURES["boxes"], "id": FEATURES["id"]})
    payload = encode_example(small, {"boxes": [1.0, 2.0], "id": 7})
    decoder = Decoder(SCHEMA, 1, ops=[CountBoxes()], keys=("count", "id"))
    batch = decoder([payload], np.zeros((1, 1, 2), np.int32), np.array([0], np.int32))
    assert {key: value.tolist() for key, value in batch.items()} == {"count": [2], "id": [7]}


def test_an_op_may_read_what_one_before_it_made():
    twice = (CountBoxes(), CountBoxes(reads=("count",), into="again"))
    assert decoded(Decoder(SCHEMA, 1, ops=twice, keys=("again",)), [record(3)], [0]) == {
        "again": [1]
    }


@pytest.mark.parametrize("ops", [(), (CountBoxes(),)], ids=["parsed", "op"])
@pytest.mark.parametrize("offset", [3, 17 * 10**17, 2**63 - 1, -(2**63)])
def test_integers_minus_an_offset_are_exact_before_they_become_float32(offset, ops):
    numbers = [5, -(2**63), 2**63 - 1, 17 * 10**17 + 2**24 - 1]
    decoder = Decoder(
        SCHEMA, 5, ops=ops, keys=("id", "grid", "pair"), offsets={"id": offset, "pair": 9, "no": 9}
    )
    records = [record(1) | {"id": number} for number in numbers]
    batch = decoded(decoder, records, [0, 1, 2, 3, -1])
    assert batch["id"].dtype == decoder.spec["id"].dtype == np.float32
    assert batch["id"].tolist() == [*(np.float32(number - offset) for number in numbers), 0]
    assert batch["pair"][0].tolist() == [1, -1]  # floats
    assert batch["grid"].dtype == np.int32


@pytest.mark.parametrize(
    ("records", "index"), [((3, 4), [3, -1, 4, -1]), ((), [-1] * 4), ((1, 2, 3, 4), [1, 2, 3, 4])]
)
@pytest.mark.parametrize("ops", [(), (CountBoxes(),)], ids=["parsed", "op"])
def test_padding_is_the_pad_value_where_the_index_is_minus_one(records, index, ops):
    decoder = Decoder(
        SCHEMA, 4, ops=ops, keys=("id", "pair"), pad_values={"id": 99, "pair": np.nan}
    )
    batch = decoded(decoder, [record(i) for i in records], index)
    assert batch["id"].tolist() == [99 if i < 0 else i for i in index]
    np.testing.assert_array_equal(
        batch["pair"], [[np.nan] * 2 if i < 0 else [i, -i] for i in index]
    )


def test_ops_are_not_called_for_padding():
    @dataclass(frozen=True)
    class Refuse(CountBoxes):
        def __call__(self, features, rng):
            assert len(features["boxes"]), "saw padding"
            return super().__call__(features, rng)

    batch = decoded(Decoder(SCHEMA, 3, ops=[Refuse()], keys=("count",)), [record(2)], [0, -1, -1])
    assert batch["count"].tolist() == [2, 0, 0]


def test_int64_is_delivered_as_int32_and_never_cut():
    decoder = Decoder(SCHEMA, 2, keys=("id",))
    assert decoded(decoder, [record(1) | {"id": 2**31 - 1}, record(1) | {"id": -(2**31)}], [0, 1])[
        "id"
    ].tolist() == [2**31 - 1, -(2**31)]
    text = r"^'id' is delivered as int32 and has a value out of range; .* Its minimum and maximum are 1 and 2147483648\.$"
    with pytest.raises(SchemaError, match=text):
        decoded(decoder, [record(1), record(1) | {"id": 2**31}], [0, 1])


def test_a_record_that_is_no_example_is_a_schema_error_whatever_its_bytes():
    decoder = Decoder(SCHEMA, 1, keys=("id",))
    for payload in (b"no example", b"\xff\xfe\x86 no example"):
        with pytest.raises(
            SchemaError, match=rf"{len(payload)} bytes that are not a tf\.train\.Example"
        ):
            decoder([payload], np.zeros((1, 0, 2), np.int32), np.array([0]))


def test_a_batch_without_features_still_proves_itself():
    decoder = Decoder(SCHEMA, 2, keys=())
    assert set(decoder.spec) == {"_mask", "_index", "_crc"}
    assert decoded(decoder, [record(1)], [0, -1]) == {}


def test_a_batch_without_features_is_warned_of_unless_keys_is_empty(caplog):
    only_bytes = Schema("names", {"name": Feature("bytes")})
    Decoder(only_bytes, 1, keys=())
    assert "no feature fits" not in caplog.text
    Decoder(only_bytes, 1)
    (message,) = [text for text in caplog.messages if "no feature fits" in text]
    assert message.startswith("no feature fits a batch, so it contains only _mask, _index, _crc.")
    assert "start with _: name. Add an op" in message


LABEL = "image/class/label"


class Doubled:
    """An op on the label alone."""

    reads = (LABEL,)

    def output_spec(self, specs):
        return {"twice": ArraySpec((), np.dtype(np.int64))}

    def __call__(self, features, rng):
        return {"twice": 2 * features[LABEL]}


def serving(keys):
    ops = [
        DecodePng("image/encoded", into="image", shape=(4, 6, 3)),
        Doubled(),
        RandomFlip("image"),
    ]
    given = {"ops": ops, "keys": ["image", "twice"], "global_batch": 32}
    return eval_dataset(tiny_images("validation", (4, 6, 3), 4), **given).serving(keys)


def test_only_what_the_wanted_features_depend_on_is_read():
    assert list(serving(["image"]).stored) == ["image/encoded"]
    assert list(serving(["twice"]).stored) == [LABEL]
    assert sorted(serving(["image", "twice"]).stored) == [LABEL, "image/encoded"]


def test_the_arrays_of_records_are_made_from_their_stored_features():
    both = serving(["image", "twice"])
    payloads = both.payloads([5, 0, 129])
    stored = both.stored_features(payloads)
    arrays = both.rows.decode(payloads, np.zeros((3, both.rows.num_ops, 2), np.int32), np.arange(3))
    assert arrays["twice"].tolist() == [2, 0, 2] == (2 * stored[LABEL]).tolist()
    for png, image in zip(stored["image/encoded"], arrays["image"], strict=True):
        np.testing.assert_array_equal(image, Image.open(io.BytesIO(png)))
