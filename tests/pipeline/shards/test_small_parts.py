"""Sizes, names, schemas, errors."""

import subprocess
import sys

import pytest

from pipeline import errors
from pipeline.errors import OptionError, SchemaError
from pipeline.shards import errors as shards_errors
from pipeline.shards.naming import validate_split
from pipeline.shards.schema import Feature, Schema
from pipeline.sizes import counted, format_bytes, format_number, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 10**8), ("1.5 GiB", 3 * 2**29), ("4096", 4096), (7, 7), ("2tb", 2 * 10**12), ("1KB", 1000)],
)
def test_sizes_with_units_are_parsed(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-5MB", "5XB", "0", "0.1B", "1e3"])
def test_what_is_no_size_is_refused_with_the_form(text):
    with pytest.raises(OptionError, match="is not a size in bytes. Write a number and a unit: 500KB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"), [(999, "999 B"), (1234, "1.23 KB"), (999_900, "1000 KB"), (147e9, "147 GB"), (0, "0 B")]
)
def test_sizes_are_written_with_three_digits(size, text):
    assert format_bytes(size) == text


@pytest.mark.parametrize("split", ["", "Train", "manifest2", "features", "a-b", "../x", "1a"])
def test_split_names_that_would_confuse_readers_are_refused(split):
    with pytest.raises(OptionError, match="cannot be a split's name"):
        validate_split(split)


def test_a_schema_survives_json_and_invalid_ones_are_refused():
    schema = Schema("s", {"a": Feature("bytes", (None,), True, "text", "doc"), "b": Feature("int64", (2, 3))})
    grey = Schema("s", {"a": Feature("bytes", content="image", channels=1)})
    assert [Schema.from_json(s.to_json()) for s in (schema, grey)] == [schema, grey]
    assert [f.num_values for f in schema.features.values()] == [None, 6]
    # Schemas of before there was the field keep their plans.
    assert "channels" not in schema.to_json()["features"]["a"]
    with pytest.raises(SchemaError, match="dtype 'int32' is not one of bytes, int64, float32"):
        Feature("int32")
    with pytest.raises(SchemaError, match=r"must be the only one: \(None,\)"):
        Feature("int64", (None, 3))
    with pytest.raises(SchemaError, match="must be raw; only bytes may also be text or image"):
        Feature("int64", content="image")
    with pytest.raises(SchemaError, match="channels 2 of content image: must be 1, 3 or 4, and only for an image"):
        Feature("bytes", content="image", channels=2)
    with pytest.raises(SchemaError, match="malformed schema"):
        Schema.from_json({"name": "s"})


def test_every_public_error_is_an_infeed_error():
    classes = [getattr(errors, name) for name in errors.__all__ if name[0].isupper()]
    assert all(issubclass(c, errors.InfeedError) for c in classes)


def test_the_errors_can_still_be_imported_from_where_they_were():
    assert all(getattr(shards_errors, name) is getattr(errors, name) for name in errors.__all__)


@pytest.mark.slow
def test_the_shard_format_and_storage_load_neither_tensorflow_nor_jax_nor_beam():
    code = (
        "import sys, pkgutil, importlib, pipeline.shards, pipeline.storage\n"
        "for p in (pipeline.shards, pipeline.storage):\n"
        "    for m in pkgutil.iter_modules(p.__path__): importlib.import_module(f'{p.__name__}.{m.name}')\n"
        "heavy = {'tensorflow', 'jax', 'apache_beam', 'PIL'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        *[(71_960.4, "71,960"), (9_999.6, "10,000"), (999.96, "1,000"), (97.574, "97.57"), (0.00784, "0.00784")],
        *[(1e15, "1e+15"), (-2500.2, "-2,500"), (12_345_678_901_234, "12,345,678,901,234"), (float("nan"), "nan")],
    ],
)
def test_numbers_are_shown_as_people_write_them(value, shown):
    assert format_number(value) == shown


def test_one_thing_is_singular():
    assert [counted(count, "shard") for count in (0, 1, 2_000)] == ["0 shards", "1 shard", "2,000 shards"]
