"""Payloads that are no Example: structs by a NumPy dtype, and bytes that only an op can read."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.decoding.decode import Decoder
from pipeline.decoding.rows import parser_of
from pipeline.errors import OptionError, SchemaError
from pipeline.shards.schema import Schema
from pipeline.spec import BYTES, ArraySpec, Opaque, feature_specs

CIFAR = np.dtype([("label", "u1"), ("image", "u1", (3, 32, 32))])
WIDE = ["u2", "u4", "u8", "i2", "i4", "i8", "f2", "f4", "f8"]
NUMBERS = ["?", "u1", "i1", *(order + kind for order in "<>" for kind in WIDE)]
shapes = st.lists(st.integers(1, 3), max_size=2).map(tuple)


@st.composite
def structs(draw) -> np.dtype:
    fields = draw(
        st.lists(st.tuples(st.sampled_from([*NUMBERS, "S3", "V2"]), shapes), min_size=1, max_size=4)
    )
    described = [(f"f{i}", kind, shape) for i, (kind, shape) in enumerate(fields)]
    return np.dtype(described, align=draw(st.booleans()))  # aligned: with gaps between fields


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()  # NaN is not equal to itself, and keeps its payload all the same


def decoded(decoder: Decoder, payloads: list[bytes], index: list[int]) -> dict[str, np.ndarray]:
    seeds = np.zeros((len(payloads), decoder.num_ops, 2), np.int32)
    return decoder(payloads, seeds, np.array(index, np.int32))


@settings(max_examples=examples(60))
@given(structs(), st.data())
def test_a_struct_parses_to_what_numpy_reads_from_it(dtype, data):
    payloads = data.draw(
        st.lists(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize), max_size=3)
    )
    parsed = parser_of(dtype, dtype.names or ())(payloads)
    expected = np.frombuffer(b"".join(payloads), dtype) if payloads else np.empty(0, dtype)
    specs = feature_specs(dtype)
    assert list(parsed) == list(specs) == list(dtype.names or ())
    for key, value in parsed.items():
        field, spec = expected[key], specs[key]
        assert value.shape == (len(payloads), *spec.shape)
        assert value.dtype == spec.dtype
        if spec.dtype == BYTES:
            # NumPy takes the zeros at the end from an S
            exact = field.copy().view(f"V{field.dtype.itemsize}")
            assert value.ravel().tolist() == [bytes(x) for x in exact.ravel().tolist()]
        elif spec.dtype.kind == "b":
            assert value.tolist() == (field.view("u1") != 0).tolist()
        else:
            assert bits(value) == bits(field.astype(spec.dtype))


def test_a_batch_of_structs_has_static_shapes_and_keeps_small_dtypes():
    records = np.zeros(3, CIFAR)
    records["label"], records["image"] = [7, 8, 9], np.arange(3 * 3072).reshape(3, 3, 32, 32) % 251
    decoder = Decoder(CIFAR, 4)
    assert {key: (s.shape, s.dtype.name) for key, s in decoder.spec.items() if key[0] != "_"} == {
        "label": ((4,), "uint8"),
        "image": ((4, 3, 32, 32), "uint8"),
    }
    batch = decoded(decoder, [r.tobytes() for r in records], [0, 1, -1, 2])
    assert batch["label"].tolist() == [7, 8, 0, 9]
    np.testing.assert_array_equal(batch["image"][[0, 1, 3]], records["image"])
    assert not batch["image"][2].any()


@pytest.mark.parametrize("rows", [[1, 0, 1, 1], [1, 0], []], ids=["full", "padded", "padding only"])
def test_every_number_is_delivered_as_a_dtype_that_jax_takes(rows):
    dtype = np.dtype([(kind, kind, (2,)) for kind in NUMBERS])
    values = np.array([((row, 1),) * len(NUMBERS) for row in rows], dtype)
    decoder = Decoder(dtype, 4, pad_values=dict.fromkeys(NUMBERS, 1))
    batch = decoded(
        decoder, [v.tobytes() for v in values], [*range(len(rows)), *[-1] * (4 - len(rows))]
    )
    for kind in NUMBERS:
        native = np.dtype(kind).newbyteorder("=")
        assert batch[kind].dtype == decoder.spec[kind].dtype
        assert batch[kind].dtype == {"i8": np.int32, "u8": np.uint32, "f8": np.float32}.get(
            native.str[1:], native
        )
        assert batch[kind].tolist() == [*([row, 1] for row in rows), *[[1, 1]] * (4 - len(rows))]


@pytest.mark.parametrize(
    ("kind", "fits", "beyond"),
    [
        ("i8", -(2**31), -(2**31) - 1),
        ("u8", 2**32 - 1, 2**32),
        ("f8", 3e38, 1e39),
        ("f8", np.inf, -1e39),
    ],
)
def test_a_value_that_does_not_fit_32_bits_is_an_error(kind, fits, beyond):
    dtype = np.dtype([("x", kind)])
    decoder = Decoder(dtype, 1)
    assert decoded(decoder, [np.array((fits,), dtype).tobytes()], [0])["x"] == decoder.spec[
        "x"
    ].dtype.type(fits)
    with pytest.raises(
        SchemaError, match=rf"'x' is delivered as {decoder.spec['x'].dtype} and has a value out"
    ):
        decoded(decoder, [np.array((beyond,), dtype).tobytes()], [0])


def test_a_float64_is_rounded_and_nan_stays():
    dtype = np.dtype([("x", "f8", (2,))])
    batch = decoded(Decoder(dtype, 1), [np.array(((0.1, np.nan),), dtype).tobytes()], [0])
    np.testing.assert_array_equal(batch["x"], np.float32([[0.1, np.nan]]))


@pytest.mark.parametrize("lengths", [[3073, 3072], [3072], [0], [6146]])
def test_a_struct_of_the_wrong_length_is_an_error_that_states_both_lengths(lengths):
    wrong = next(n for n in lengths if n != 3073)
    with pytest.raises(
        SchemaError,
        match=rf"^a record does not have the 3073 bytes of its dtype; it has {wrong}\.$",
    ):
        decoded(Decoder(CIFAR, 2), [bytes(n) for n in lengths], [*range(len(lengths)), -1][:2])


@dataclass(frozen=True)
class Length:
    """Reads the bytes of a payload."""

    key: str

    @property
    def reads(self):
        return (self.key,)

    def output_spec(self, specs):
        assert specs[self.key] == ArraySpec((), BYTES)
        return {"length": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        return {"length": len(features[self.key])}


@pytest.mark.parametrize(
    ("layout", "key"),
    [(Opaque("text"), "text"), (Opaque(), "record"), (Schema("tfrecord", {}), "record")],
)
def test_an_opaque_payload_is_one_bytes_value_for_ops(layout, key):
    decoder = Decoder(layout, 3, ops=[Length(key)])
    assert decoded(decoder, [b"ab", b""], [0, 1, -1])["length"].tolist() == [2, 0, 0]
    assert set(Decoder(layout, 3).spec) == {"_mask", "_index", "_crc"}  # no device takes bytes
    with pytest.raises(SchemaError, match=rf"{key!r} is bytes, which devices do not support"):
        Decoder(layout, 3, keys=[key])


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (np.dtype("u1"), r"the dtype uint8 has no named fields, .* np\.dtype\(\[\('label'"),
        (np.dtype("(3,)u1"), "has no named fields"),
        (
            np.dtype([("when", "M8[s]")]),
            r"field 'when' is datetime64\[s\]; it must be bool, an integer",
        ),
        (np.dtype([("z", "c8")]), "field 'z' is complex64"),
        (np.dtype([("name", "U4")]), "field 'name' is <U4"),
        (np.dtype([("who", "O")]), "field 'who' is object"),
        (np.dtype([("in", [("a", "u1")])]), r"field 'in' is \[\('a'"),
        (np.dtype([("long", "g")]), "field 'long' is float128"),
        (np.dtype([("none", "u1", (0,))]), r"field 'none' is .*, which has no bytes"),
        (np.dtype([("none", "S0")]), r"field 'none' is .*, which has no bytes"),
    ],
)
def test_a_dtype_that_is_no_struct_of_numbers_and_bytes_is_refused(layout, text):
    with pytest.raises(SchemaError, match=text):
        Decoder(layout, 2)


def test_a_feature_with_a_reserved_name_is_left_out_and_refused_when_asked_for():
    layout = np.dtype([("_mask", "u1"), ("x", "u1")])
    assert Decoder(layout, 2).spec["_mask"].dtype == np.float32
    assert decoded(Decoder(layout, 1), [b"\1\2"], [0]).keys() == {"x"}
    with pytest.raises(
        OptionError, match=r"keys has '_mask': names that start with _ are reserved"
    ):
        Decoder(layout, 2, keys=["_mask"])


@pytest.mark.parametrize(
    ("kind", "pad", "delivered"),
    [
        ("?", 2, "bool"),
        ("u1", 256, "uint8"),
        ("u1", -1, "uint8"),
        ("f2", 1e5, "float16"),
        ("u8", 2**32, "uint32"),
        ("f8", 1e39, "float32"),
    ],
)
def test_a_pad_value_that_the_delivered_dtype_cannot_hold_is_refused(kind, pad, delivered):
    with pytest.raises(
        OptionError, match=rf"pad_values\['x'\] is .*, which {delivered} cannot hold"
    ):
        Decoder(np.dtype([("x", kind)]), 2, pad_values={"x": pad})
