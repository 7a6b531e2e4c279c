"""Numbers of classes and categories: what they mean in some data, and what the same names are to a model."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import eval_dataset, mixture, open_dataset, train_dataset
from pipeline.decoding.columns import Ragged, renumbered
from pipeline.description import Description, renumberings
from pipeline.errors import OptionError, SchemaError
from pipeline.grain import source
from pipeline.raw.cells import MISSING
from pipeline.shards.schema import ColumnStatistics, Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords

SCHEMA = Schema("rows", {"kind": Feature("int64"), "tags": Feature("int64", (None,))})
NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True).map(tuple)


def described(kinds, tags=("x",), base=0):
    columns = {"tags": ColumnStatistics(0, 0, categories=dict.fromkeys(tags, 0))}
    return Description(SCHEMA, Labels("kind", base, kinds), columns)


@given(
    ours=NAMES, theirs=NAMES, bases=st.tuples(st.integers(0, 3), st.integers(0, 3)), data=st.data()
)
@settings(max_examples=examples(150))
def test_a_name_has_the_models_number_and_one_that_it_lacks_is_missing_and_counted(
    ours, theirs, bases, data
):
    rows = data.draw(
        st.lists(st.lists(st.sampled_from([*theirs, None]), max_size=4), min_size=1, max_size=6)
    )
    model, other = described(("k",), ours), described(("k",), theirs)
    by = renumberings(model, other, "rows", ["tags"], {})
    values = [MISSING if name is None else theirs.index(name) for row in rows for name in row]
    column = Ragged(np.array(values, np.int64), np.array([*map(len, rows)]))
    numbers, hidden = renumbered({"tags": column}, by)
    expected = [ours.index(name) if name in ours else MISSING for row in rows for name in row]
    assert (numbers.get("tags") or column).values.tolist() == expected
    lost = [sum(name is not None and name not in ours for name in row) for row in rows]
    assert (hidden is None and not any(lost)) or hidden.tolist() == lost

    model, other = described(ours, base=bases[0]), described(theirs, base=bases[1])
    if unknown := [name for name in theirs if name not in ours]:
        with pytest.raises(OptionError, match=f"'kind' has the class '{unknown[0]}'"):
            renumberings(model, other, "rows", ["kind"], {"kind": 0})
    by = renumberings(model, other, "rows", ["kind"], {"kind": 0}, strict=False)
    found = by["kind"](np.arange(len(theirs)) + bases[1])
    assert found.tolist() == [
        ours.index(name) + bases[0] if name in ours else MISSING for name in theirs
    ]


def test_categories_of_which_the_model_has_seen_none_are_told(caplog):
    model = described(("k",), ("a", "b"))
    renumberings(model, described(("k",), ("b", "c")), "rows", ["tags"], {})
    assert not caplog.records
    renumberings(model, described(("k",), ("c", "d")), "rows", ["tags"], {})
    assert caplog.messages == [
        "rows: the model has seen none of the categories of 'tags', so all of its values count as missing"
    ]


def test_spellings_of_true_are_one_class_of_data_that_were_converted_apart():
    model = described(("False", "True"))
    for names in (("true", "false"), ("1", "0"), ("TRUE", "False")):
        by = renumberings(model, described(names), "rows", ["kind"], {"kind": 2})
        assert by["kind"](np.array([0, 1, MISSING])).tolist() == [1, 0, MISSING]


def test_equal_data_need_no_renumbering_but_their_target_is_checked():
    same = described(("cat", "dog"), base=1)
    assert renumberings(same, same, "rows", ["kind", "tags"], {}) == {}
    by = renumberings(same, same, "rows", ["kind", "tags"], {"kind": 2})
    assert by["kind"](np.array([1, 2, MISSING])).tolist() == [1, 2, MISSING]
    for stray in (0, 3, -2):
        with pytest.raises(
            SchemaError,
            match=rf"'kind' is {stray}, which is not one of its 2 classes, 1\.\.2, or -1",
        ):
            by["kind"](np.array([1, stray]))
    # the task has classes without a name
    more = renumberings(same, same, "rows", ["kind"], {"kind": 9})
    assert more["kind"](np.array([9])).tolist() == [9]


def test_names_that_are_not_unique_cannot_be_mapped():
    cranes = described(("crane", "crane", "dog"))
    assert renumberings(cranes, cranes, "rows", ["kind"], {}) == {}
    with pytest.raises(
        OptionError, match="rows: the classes of 'kind' differ from the model's, and some have"
    ):
        renumberings(cranes, described(("dog", "crane")), "rows", ["kind"], {})


def rows(kinds, numbers=(0, 1)):
    labels = kinds and Labels("kind", 0, kinds)
    return ExampleRecords(
        "rows", SCHEMA, [{"kind": number, "tags": []} for number in numbers], labels
    )


def test_data_that_are_read_together_number_their_classes_alike():
    ours, theirs = rows(("cat", "dog")), rows(("dog", "cat"))
    told = "rows and rows number the classes of 'kind' differently, or only one of them names them"
    for others in ([ours, theirs], [ours, rows(None)], [rows(None), ours]):
        with pytest.raises(OptionError, match=told):
            eval_dataset(others, global_batch=2, keys=["kind"])
    with pytest.raises(OptionError, match=told):
        train_dataset(mixture([ours, theirs], [1, 1]), global_batch=2, keys=["kind"])
    assert (
        eval_dataset([ours, ours], global_batch=2, keys=["kind"]).info.description.labels
        == ours.info.labels
    )
    both = open_dataset([ours, theirs])
    assert both.labels is None  # to look at, they can be opened
    for read in (lambda: both.examples(["kind"]), lambda: source([ours, theirs])):
        with pytest.raises(OptionError, match=told):
            read()


def test_a_warm_start_takes_the_targets_kind_from_the_data():
    schema = replace(SCHEMA, features={**SCHEMA.features, "kind": Feature("float32")})
    counts = ColumnStatistics(2, 0, categories={"cat": 1, "dog": 1})
    model = replace(described(("cat", "dog")), columns={"kind": counts})
    begun = model.continued_with(Description(schema), "kind")
    assert begun.schema.features["kind"] == Feature("float32")
    assert begun.names("kind") is None


def test_a_described_dataset_can_be_pickled():
    data = open_dataset(rows(("cat", "dog")))
    assert pickle.loads(pickle.dumps(data)).info.description == data.info.description
