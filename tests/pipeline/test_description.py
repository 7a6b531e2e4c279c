"""Numbers of classes and categories: what they mean in some data, and what the same names are to a model."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from pipeline.datasets import eval_dataset, mixture, open_dataset, train_dataset
from pipeline.decoding.columns import Ragged, renumbered
from pipeline.description import Description, Source, renumberings
from pipeline.epoch import Epoch
from pipeline.errors import OptionError, SchemaError
from pipeline.grain import source
from pipeline.raw.cells import MISSING
from pipeline.shards.schema import ColumnStatistics, Feature, Labels, Schema
from pipeline.sources.dataset import Examples
from pipeline.sources.in_memory import ExampleRecords

SCHEMA = Schema("rows", {"kind": Feature("int64"), "tags": Feature("int64", (None,))})
NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=8, unique=True).map(tuple)


def mapped(model, other, keys, target=(), **options):
    sources = [Source(0, "rows", other)]
    return renumberings(model, sources, keys, dict(target), **options)


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
    by = mapped(model, other, ["tags"], {})
    values = [MISSING if name is None else theirs.index(name) for row in rows for name in row]
    column = Ragged(np.array(values, np.int64), np.array([*map(len, rows)]))
    numbers, hidden = renumbered({"tags": column}, by, np.arange(len(rows)))
    expected = [ours.index(name) if name in ours else MISSING for row in rows for name in row]
    assert (numbers.get("tags") or column).values.tolist() == expected
    lost = [sum(name is not None and name not in ours for name in row) for row in rows]
    assert (hidden is None and not any(lost)) or hidden.tolist() == lost

    model, other = described(ours, base=bases[0]), described(theirs, base=bases[1])
    if unknown := [name for name in theirs if name not in ours]:
        with pytest.raises(OptionError, match=f"'kind' has the class '{unknown[0]}'"):
            mapped(model, other, ["kind"], {"kind": 0})
    by = mapped(model, other, ["kind"], {"kind": 0}, strict=False)
    found = by["kind"](np.arange(len(theirs)) + bases[1], 0)
    assert found.tolist() == [
        ours.index(name) + bases[0] if name in ours else MISSING for name in theirs
    ]


def test_categories_of_which_the_model_has_seen_none_are_told(caplog):
    model = described(("k",), ("a", "b"))
    mapped(model, described(("k",), ("b", "c")), ["tags"], {})
    assert not caplog.records
    mapped(model, described(("k",), ("c", "d")), ["tags"], {})
    assert caplog.messages == [
        "rows: the model has seen none of the categories of 'tags', so all of its values count as missing"
    ]


def test_spellings_of_true_are_one_class_of_data_that_were_converted_apart():
    model = described(("False", "True"))
    for names in (("true", "false"), ("1", "0"), ("TRUE", "False")):
        by = mapped(model, described(names), ["kind"], {"kind": 2})
        assert by["kind"](np.array([0, 1, MISSING]), 0).tolist() == [1, 0, MISSING]


def test_equal_data_need_no_renumbering_but_their_target_is_checked():
    same = described(("cat", "dog"), base=1)
    assert mapped(same, same, ["kind", "tags"], {}) == {}
    by = mapped(same, same, ["kind", "tags"], {"kind": 2})
    assert by["kind"](np.array([1, 2, MISSING]), 0).tolist() == [1, 2, MISSING]
    for stray in (0, 3, -2):
        with pytest.raises(
            SchemaError,
            match=rf"'kind' is {stray}, which is not one of its 2 classes, 1\.\.2, or -1",
        ):
            by["kind"](np.array([1, stray]), 0)
    # the task has classes without a name
    more = mapped(same, same, ["kind"], {"kind": 9})
    assert more["kind"](np.array([9]), 0).tolist() == [9]


def test_names_that_are_not_unique_cannot_be_mapped():
    cranes = described(("crane", "crane", "dog"))
    assert mapped(cranes, cranes, ["kind"], {}) == {}
    with pytest.raises(
        OptionError, match="rows: the classes of 'kind' differ from the model's, and some have"
    ):
        mapped(cranes, described(("dog", "crane")), ["kind"], {})


def rows(kinds, numbers=(0, 1), base=0):
    labels = kinds and Labels("kind", base, kinds)
    return ExampleRecords(
        "rows",
        SCHEMA,
        [{"kind": number + base, "tags": [*range(number)]} for number in numbers],
        labels,
    )


@given(
    names=st.lists(NAMES, min_size=3, max_size=3),
    bases=st.lists(st.integers(0, 3), min_size=3, max_size=3),
    cut=st.integers(1, 5),
)
@settings(max_examples=examples(20))
def test_classes_of_data_that_are_read_together_keep_the_numbers_of_the_first(names, bases, cut):
    numbers = [[*range(len(each)), MISSING - base] for each, base in zip(names, bases, strict=True)]
    first, second, third = map(rows, names, numbers, bases)
    texts = [name for each in names for name in (*each, None)]
    union = [*dict.fromkeys(name for name in texts if name)]
    expected = [MISSING if name is None else union.index(name) + bases[0] for name in texts]
    apart = open_dataset([first, open_dataset([second, third])])
    ends = len(names[0]) + 1
    for opened, which in (
        (open_dataset([first, second, third]), slice(None)),
        (apart, slice(None)),
        (apart[cut:], slice(cut, None)),
        (pickle.loads(pickle.dumps(apart))[ends:], slice(ends, None)),
    ):
        assert opened.labels == Labels("kind", bases[0], tuple(union))
        due = expected[which]
        assert [each["kind"] for each in opened.examples(["kind"])] == due
        grain = source(opened, keys=["kind"])
        assert [each["kind"] for each in map(grain.__getitem__, range(len(due)))] == due
        assert grain.take(range(len(due)))["kind"].tolist() == due
        data = eval_dataset(opened, global_batch=len(due) + 1, keys=["kind"])
        (batch,) = data.batches()
        assert batch["kind"][:-1].tolist() == due
        assert data.info.description.labels == opened.labels
    (batch,) = eval_dataset([third], global_batch=9, keys=["kind"]).described_as(
        data.info.description, {"kind": 0}, strict=True
    )
    assert batch["kind"][: len(names[2]) + 1].tolist() == expected[-len(names[2]) - 1 :]
    drawn = train_dataset(mixture([apart, third], [1, 1]), global_batch=8, keys=["kind"])
    batch = next(drawn.batches())
    due = np.array(expected + expected[-len(names[2]) - 1 :])
    assert batch["kind"].tolist() == due[batch["_index"]].tolist()


def test_an_epoch_of_records_whose_numbers_differ_is_one_of_decoded_records():
    both = [rows(("cat", "dog")), rows(("dog", "cow"))]
    with pytest.raises(
        OptionError, match="number the classes of 'kind' differently, and a program"
    ):
        Epoch(open_dataset(both))
    data = eval_dataset(both, global_batch=4, keys=["kind"])
    decoded = source(both, keys=["kind"])
    for each in (data, decoded):
        epoch = Epoch(each)
        epoch.add(decoded.take(range(4)))
        assert epoch.check().proven
    assert decoded.info.description.labels == data.info.description.labels


def test_a_number_that_is_no_class_of_its_dataset_is_none_of_another():
    both = [rows(("cat", "dog"), (0, 2)), rows(("cow",), (0,))]
    told = "'kind' is 2, which is not one of its 2 classes, 0..1, or -1 for none"
    data = eval_dataset(both, global_batch=4, keys=["kind"])
    for read in (lambda: next(data.batches()), lambda: open_dataset(both).examples()[1]):
        with pytest.raises(SchemaError, match=told):
            read()


def test_data_that_are_read_together_all_name_their_classes_or_none_does():
    ours = rows(("cat", "dog"))
    told = "rows \\+ rows: only some of them name the classes of 'kind'. Convert them together"
    for others in ([ours, rows(None)], [rows(None), ours]):
        both = open_dataset(others)
        assert both.labels is None  # to look at, they can be opened
        for read in (partial(eval_dataset, global_batch=2), source, Examples):
            with pytest.raises(OptionError, match=told):
                read(both)
    with pytest.raises(OptionError, match=told):
        train_dataset(mixture([ours, rows(None)], [1, 1]), global_batch=2, keys=["kind"])
    assert eval_dataset([ours, ours], global_batch=2).info.description.labels == ours.info.labels


def test_categories_of_several_tables_are_joined_with_their_counts():
    schema = replace(SCHEMA, features={"tags": SCHEMA.features["tags"]})

    def table(tags, count):
        columns = {"tags": ColumnStatistics(4, 0, categories=dict.fromkeys(tags, count))}
        named = Labels("tags", 0, tuple(tags)), {}
        description = Description(schema, *((None, columns) if count else named))
        rows = [{"tags": [1, 0, MISSING]}, {"tags": []}]
        return ExampleRecords("table", schema, rows, description=description)

    for counts in ((3, 2, 0), (0, 3, 2), (3, 0, 0)):
        tables = [*map(table, ("ab", "cb", "ad"), counts)]
        data = eval_dataset(tables, global_batch=6, pad_to={"tags": 3}, keys=["tags"])
        (batch,) = data.batches()
        numbers = [[1, 0, -1], [1, 2, -1], [3, 0, -1]]
        assert batch["tags"][::2].tolist() == numbers
        assert data.info.description.names("tags").names == ("a", "b", "c", "d")
        if counts[0]:
            categories = data.info.description.columns["tags"].categories
            assert [*categories.items()] == [
                ("a", 3), ("b", 3 + counts[1]), ("c", counts[1]), ("d", 0)
            ]  # fmt: skip


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
