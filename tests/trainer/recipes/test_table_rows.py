"""Cells of rows to predict: they mean what they mean in a conversion, and what a model cannot know is missing."""

import math
from dataclasses import replace

import pytest

from converters.table.columns import Column, features_of
from pipeline.description import Description
from pipeline.errors import OptionError, Reject
from pipeline.raw.cells import class_number
from pipeline.shards.schema import ColumnStatistics, Schema
from pipeline.sources.in_memory import ExampleRecords
from trainer.recipe import settings
from trainer.recipes.tabular import Config

COLUMNS = (
    Column("whole", "int64"),
    Column("real", "float32"),
    Column("code", "category", names=("7", "101", "8.0", "8")),
    Column("flag", "category", names=("false", "true")),
    Column("loud", "category", names=("FALSE", "TRUE")),
    Column("odd", "category", names=("nan", "None")),
    Column("kind", "category", names=("a", "b"), required=True),
    Column("pair", "int64", (2,)),
)
LARGEST = 3.4028234663852886e38
FORMS = [
    ("whole", [7, "7", " +7 ", 7.0, "7.0", "7.", "7.000"], 7),
    ("whole", [True], 1),
    ("whole", [2**31 - 1, "2147483647", "2147483647.0"], 2**31 - 1),
    (
        "whole",
        ["inf", "x", "1_0", "7.5", 7.5, math.inf, 2**63, "9223372036854775808.0", "true", "1e3"],
        None,
    ),
    ("real", [7, "7", "7.0", 7.0, " 7e0 "], 7.0),
    ("real", [False], 0.0),
    ("real", [LARGEST, str(LARGEST)], LARGEST),
    ("real", ["inf", "-Infinity", "x", "1_0", math.inf, 1e39, "Nan"], None),
    ("code", [101, "101", " 101 ", 101.0, "101.0", "101.", "101.00"], 1),
    ("code", ["8.0", 8.0], 2),
    ("code", [8, "8"], 3),
    ("flag", [True, "true"], 1),
    ("flag", [False, "false"], 0),
    ("loud", [True, "TRUE"], 1),
    ("kind", ["b", " b "], 1),
]
CELLS = [(column, cell, value) for column, cells, value in FORMS for cell in cells]


@pytest.fixture(scope="module")
def recipe():
    schema = Schema("rows", features_of(COLUMNS))
    config = Config(data_dir="unused", target="kind", trainer=settings(workdir="unused"))
    blank = {name: [0] * (feature.num_values or 0) for name, feature in schema.features.items()}
    found = config.on(ExampleRecords("rows", schema, [blank]))
    statistics = {
        each.name: ColumnStatistics(9, 0, categories=dict.fromkeys(each.names, 3))
        for each in COLUMNS
    }
    vars(found).update(description=Description(schema, None, statistics))
    return found


def of_any_target(recipe, column):
    """The recipe with this column among the inputs."""
    other = replace(recipe, target="real" if column == "kind" else "kind")
    vars(other).update(description=recipe.description)
    return other


@pytest.mark.parametrize(("column", "cell", "value"), CELLS, ids=repr)
def test_conversion_and_prediction_read_a_cell_alike(recipe, column, cell, value):
    of_conversion = next(each for each in COLUMNS if each.name == column)
    reader = of_any_target(recipe, column)
    if value is not None:
        assert of_conversion.value({column: cell}, bytes) == value
        assert reader.row_record({column: cell})[column] == value
        return
    with pytest.raises(ValueError, match=f"'{column}' is .*; it must be a") as error:
        of_conversion.value({column: cell}, bytes)
    with pytest.raises(Reject) as refused:
        reader.row_record({column: cell})
    assert str(refused.value) == str(error.value)


@pytest.mark.parametrize("cell", [None, "", " ", math.nan, "NA", "nan", "<NA>"], ids=repr)
def test_numbers_and_classes_without_a_value_are_missing(recipe, cell):
    record = recipe.row_record(dict.fromkeys(("whole", "real", "code", "flag"), cell))
    assert all(map(math.isnan, (record["whole"], record["real"])))
    assert (record["code"], record["flag"]) == (-1, -1)
    # the others are words, which the classes of a table may have
    if cell in (None, "", " ") or cell != cell:
        assert COLUMNS[2].value({"code": cell}, bytes) == -1


@pytest.mark.parametrize(
    ("cell", "number"), [("nan", 0), (math.nan, -1), ("None", 1), (None, -1)], ids=repr
)
def test_a_class_may_have_the_name_of_a_missing_value(recipe, cell, number):
    column = next(each for each in COLUMNS if each.name == "odd")
    assert column.value({"odd": cell}, bytes) == recipe.row_record({"odd": cell})["odd"] == number


def test_what_a_row_lacks_is_missing(recipe):
    record = recipe.row_record({"flag": "true", "note": 1})
    assert {name: repr(values) for name, values in record.items()} == {
        "flag": "1", "whole": "[nan]", "real": "[nan]", "code": "-1", "loud": "-1", "odd": "-1", "pair": "[nan, nan]",
    }  # fmt: skip
    with pytest.raises(Reject, match="none of the columns note is a feature"):
        recipe.row_record({"note": 1})


def test_classes_that_the_model_has_never_seen_are_missing(recipe):
    record = recipe.row_record({"code": 102.0, "flag": "yes", "loud": 2, "whole": 5, "kind": "c"})
    assert [record[name] for name in ("code", "flag", "loud")] == [-1, -1, -1]
    assert recipe.row_classes == {
        "code": {"7": 0, "101": 1, "8.0": 2, "8": 3},
        "flag": {"false": 0, "true": 1},
        "loud": {"FALSE": 0, "TRUE": 1},
        "odd": {"nan": 0, "None": 1},
    }


def test_true_is_1_only_where_there_are_no_other_numbers():
    two, three = {"0": 0, "1": 1}, {"0": 0, "1": 1, "2": 2}
    assert [class_number(numbers, "true") for numbers in (two, three)] == [1, -1]
    words = {"False": 0, "True": 1, "unknown": 2}
    found = [class_number(words, cell) for cell in ("1", "TRUE", True, "0", "no")]
    assert found == [1, 1, 1, 0, -1]


def test_integers_are_read_as_float32_which_has_a_missing_value(recipe):
    schema = recipe.eval_records.info.layout
    changed = {
        name
        for name, each in recipe.row_schema(schema).features.items()
        if each.dtype != schema.features[name].dtype
    }
    assert changed == {"whole", "pair"}
    assert {recipe.row_schema(schema).features[name].dtype for name in changed} == {"float32"}
    assert recipe.row_schema(schema).features["pair"].shape == (2,)


def test_a_column_of_lists_of_any_length_is_left_out_and_cannot_be_asked_for():
    schema = Schema("rows", features_of((Column("ids", "int64", (None,)), *COLUMNS[:2])))
    statistics = {name: ColumnStatistics(9, 0, 1.0, 1.0, 0.0, 2.0**62) for name in schema.features}
    description = Description(schema, None, statistics)
    records = ExampleRecords(
        "rows", schema, [{"ids": [0], "whole": [0], "real": [0.0]}], description=description
    )
    config = Config(data_dir="unused", target="real", trainer=settings(workdir="unused"))
    assert [*config.on(records).inputs] == ["whole"]
    with pytest.raises(OptionError, match="columns='ids': not a column of classes or of numbers,"):
        _ = replace(config, columns=("ids",)).on(records).inputs


def test_a_column_that_rows_lack_is_named_once(recipe, caplog):
    found = replace(recipe)
    vars(found).update(description=recipe.description)
    for _ in range(2):
        found.row_record({"whole": 1, "real": 2.0, "code": 8, "loud": True, "odd": None})
    said = [line.getMessage() for line in caplog.records]
    assert sorted(said) == [
        f"a row has no column {name}, which counts as missing" for name in ("flag", "pair")
    ]
