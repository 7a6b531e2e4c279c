"""Ops that were written for graphs of TensorFlow, in batches of NumPy."""

import pickle
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from op_rng import rng_of

from pipeline.datasets import eval_dataset
from pipeline.decoding.decode import Decoder
from pipeline.errors import OptionError, SchemaError
from pipeline.ops import Cast, Drop
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.spec import ArraySpec
from pipeline.tensorflow_op import TensorFlowOp
from pipeline.tf_cpu import tf

SCHEMA = Schema(
    "words",
    {
        "word": Feature("bytes"),
        "weights": Feature("float32", (None,)),
        "pair": Feature("int64", (2,)),
        "letters": Feature("bytes", (2,)),
    },
)
RECORDS = [
    {"word": b"a" * n, "weights": [0.5] * n, "pair": [n, 2**40], "letters": [b"x" * n, b"y"]}
    for n in (3, 0, 1, 3)
]
SEEDS = np.random.default_rng(0).integers(-(2**31), 2**31, (len(RECORDS), 2, 2)).astype(np.int32)


@dataclass(frozen=True)
class Measured:
    """An op of the old kind: tensors in and out, and a seed in place of an Rng."""

    reads: tuple[str, ...] = ("word", "weights", "pair", "letters")

    def output_spec(self, specs):
        return {
            "length": ArraySpec((), np.dtype(np.int32)),
            "sum": ArraySpec((), np.dtype(np.float32)),
            "pair": specs["pair"],
            "noise": ArraySpec((3,), np.dtype(np.float32)),
            "upper": ArraySpec((2,), np.dtype(object)),
            "first": specs["word"],
        }

    def __call__(self, features: Any, seed: Any) -> Any:
        assert not tf.executing_eagerly()
        return {
            "length": tf.strings.length(features["word"]),
            "sum": tf.reduce_sum(features["weights"]),
            "pair": features["pair"] + tf.constant(1, tf.int64),
            "noise": tf.random.stateless_uniform([3], seed),
            "upper": tf.strings.upper(features["letters"]),
            "first": tf.strings.substr(features["word"], 0, 1),
        }


@dataclass(frozen=True)
class Length:
    """An op of the new kind, which reads what the graph made."""

    reads: tuple[str, ...] = ("upper", "first")

    def output_spec(self, specs):
        return {"letters_in_all": ArraySpec((), np.dtype(np.int32))}

    def __call__(self, features, rng):
        assert isinstance(features["first"], bytes)
        return {"letters_in_all": len(b"".join(features["upper"])) + len(features["first"])}


def decoded(*ops, keys, seeds=SEEDS):
    decoder = Decoder(SCHEMA, len(RECORDS), ops=ops, keys=keys)
    payloads = [encode_example(SCHEMA, record) for record in RECORDS]
    return decoder(payloads, seeds, np.arange(len(RECORDS), dtype=np.int32))


def test_an_op_for_graphs_makes_features_of_a_batch_from_the_seeds_of_its_place_in_the_list():
    keys = ("length", "sum", "noise", "letters_in_all")
    batch = decoded(TensorFlowOp(Measured()), Length(), keys=keys)
    assert batch["length"].tolist() == [3, 0, 1, 3]
    assert batch["sum"].tolist() == [1.5, 0, 0.5, 1.5]
    assert batch["letters_in_all"].tolist() == [5, 1, 3, 5]
    noise = [tf.random.stateless_uniform([3], seed[0]).numpy() for seed in SEEDS]
    np.testing.assert_array_equal(batch["noise"], noise)
    assert {value.dtype.name for value in batch.values()} == {"int32", "float32"}


@pytest.mark.parametrize("large", [2**40, 1], ids=["64 bits", "few bits"])
def test_an_op_for_graphs_gets_the_dtypes_of_the_spec_whatever_the_values_are(large):
    @dataclass(frozen=True)
    class Shifted:
        reads: tuple[str, ...] = ("pair",)

        def output_spec(self, specs):
            return {"pair": specs["pair"]}

        def __call__(self, features, seed):
            assert features["pair"].dtype == tf.int64
            return {"pair": features["pair"] - tf.constant(large, tf.int64)}

    payloads = [encode_example(SCHEMA, RECORDS[0] | {"pair": [large, large + 1]})]
    decoder = Decoder(SCHEMA, 1, ops=[TensorFlowOp(Shifted())], keys=("pair",))
    assert decoder(payloads, SEEDS[:1, :1], np.zeros(1, np.int32))["pair"].tolist() == [[0, 1]]


@dataclass(frozen=True)
class Checked:
    """Refuses some numbers, and drops what it has read."""

    most: int
    reads: tuple[str, ...] = ("number",)

    def output_spec(self, specs):
        return {"checked": specs["number"]}

    def dropped_features(self, specs):
        return self.reads

    def __call__(self, features, seed):
        number = features["number"]
        right = tf.debugging.Assert(
            number <= self.most, ["the number is more than it may be:", number]
        )
        with tf.control_dependencies([right]):
            return {"checked": tf.identity(number)}


def test_an_error_in_the_graph_is_one_of_the_record_which_is_named(numbers_of):
    intact = eval_dataset(numbers_of(5), global_batch=5, ops=[TensorFlowOp(Checked(4))])
    assert next(intact.batches())["checked"].tolist() == [*range(5)]
    source = eval_dataset(numbers_of(5), global_batch=5, ops=[TensorFlowOp(Checked(2))])
    place = r"validation-00000-of-00001, record 3 at byte \d+ \(record 3 of 'validation'\): "
    with pytest.raises(
        SchemaError, match=place + r"Checked\(most=2, .*the number is more than it may be"
    ) as caught:
        next(source.batches())
    assert "number is more than it may be:] [3]" in str(caught.value)
    masked = eval_dataset(
        numbers_of(5), global_batch=5, ops=[TensorFlowOp(Checked(2))], on_error="mask"
    )
    assert next(masked.batches())["_mask"].tolist() == [1, 1, 1, 0, 0]
    assert [bad.record_id for bad in masked.quarantine] == [3, 4]


def test_an_op_for_graphs_that_drops_features_still_does(numbers_of):
    source = eval_dataset(
        numbers_of(5), global_batch=4, ops=[TensorFlowOp(Checked(9)), Cast("checked", "float32")]
    )
    assert source.spec.keys() == {"checked", "half", "_mask", "_index", "_crc"}
    with pytest.raises(
        OptionError, match=r"reads 'number', which TensorFlowOp\(op=Checked\(.*\) dropped"
    ):
        eval_dataset(
            numbers_of(5), global_batch=4, ops=[TensorFlowOp(Checked(9)), Drop(["number"])]
        )


def test_an_op_for_graphs_is_refused_by_name_with_the_remedy_unless_it_is_wrapped(numbers_of):
    text = (
        r"^Checked\(most=9, .*\) is an op for graphs of TensorFlow: it takes `seed`\. Ops are NumPy and take `rng`, .*"
        r" wrap it: TensorFlowOp\(op\), from pipeline\.tensorflow_op\."
    )
    with pytest.raises(OptionError, match=text):
        eval_dataset(numbers_of(5), global_batch=4, ops=[Cast("half", "float32"), Checked(9)])


def test_a_graph_is_traced_once_for_features_of_any_length_whichever_threads_need_it():
    traced = []

    @dataclass(frozen=True)
    class Counting:
        reads: tuple[str, ...] = ("weights",)

        def output_spec(self, specs):
            return {"count": ArraySpec((), np.dtype(np.int32))}

        def __call__(self, features, seed):
            traced.append(features["weights"].shape.as_list())
            return {"count": tf.size(features["weights"])}

    op = TensorFlowOp(Counting())

    def run():
        assert decoded(op, keys=("count",), seeds=SEEDS[:, :1])["count"].tolist() == [3, 0, 1, 3]

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert traced == [[None]]


def test_an_export_contains_the_op_with_a_seed_of_zeros():
    op = TensorFlowOp(Measured())
    features = {
        "word": tf.constant([b"ab"])[0],
        "weights": tf.constant([1.0, 2.0]),
        "pair": tf.constant([1, 2], tf.int64),
        "letters": tf.constant([b"a", b"b"]),
    }
    made = tf.function(op.tensorflow, autograph=False)(features)
    np.testing.assert_array_equal(made["noise"], tf.random.stateless_uniform([3], [0, 0]))
    assert made["length"] == 2


def test_a_wrapped_op_prints_compares_hashes_and_pickles():
    op = TensorFlowOp(Checked(3))
    op({"number": np.int64(1)}, rng_of())  # which traces a graph
    assert pickle.loads(pickle.dumps(op)) == op
    assert hash(pickle.loads(pickle.dumps(op))) == hash(op)
    assert op != TensorFlowOp(Checked(4))
    assert repr(op) == "TensorFlowOp(op=Checked(most=3, reads=('number',)))"
