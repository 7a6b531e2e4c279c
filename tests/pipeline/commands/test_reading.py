"""The commands and programs of pages: they start, on the dataset that the page is about."""

import shlex

import pytest
from pictures import encoded
from PIL import Image
from read_page import read_page

from pipeline.commands.dataset_page import dataset_page
from pipeline.commands.dataset_reading import commands, recipe_of
from pipeline.shards.manifest import Manifest, ShardEntry, SplitEntry, read_manifest
from pipeline.shards.schema import Feature, Labels, Schema
from trainer.commands.loading import parsed, recipe_class

PHOTOS = Schema("photos", {"image": Feature("bytes", content="image"), "label": Feature("int64")})
NAMES = Labels("label", 0, ("cat", "dog"))


def manifest(splits, schema=PHOTOS, labels=NAMES):
    entries = {
        name: SplitEntry((ShardEntry(f"{name}-0", count, 100, 0),), 0, "", "", 0)
        for name, count in splits.items()
    }
    return Manifest("photos", schema, entries, labels, directory="my data")


@pytest.mark.parametrize(
    ("splits", "train", "evaluated"),
    [
        ({"train": 90, "validation": 10}, "train", "validation"),
        ({"train": 90, "test": 10}, "train", "test"),
        ({"train": 90, "test": 10, "val": 5}, "train", "val"),
        ({"train": 90, "validation": 0}, "train[:90%]", "train[90%:]"),
        ({"all": 90, "test": 10}, "all", "test"),
    ],
)
def test_the_command_that_trains_is_parsed_and_names_splits_that_exist(splits, train, evaluated):
    name, *options = shlex.split(
        commands(manifest(splits), 28).splitlines()[1].partition("trainer ")[2]
    )
    assert name == "images"
    recipe = parsed(recipe_class(name), options, "trainer images")[0]
    assert (recipe.data_dir, recipe.train_split, recipe.eval_split) == ("my data", train, evaluated)
    assert recipe.size == 28


@pytest.mark.parametrize("side", [None, 64, 500])
def test_the_size_is_left_to_the_recipe_unless_images_are_smaller(side):
    assert "--size" not in commands(manifest({"train": 1}), side)


def test_recipes_are_named_only_for_what_they_train_on():
    several = Schema("two", PHOTOS.features | {"depth": Feature("bytes", content="image")})
    many = Schema("many", PHOTOS.features | {"label": Feature("int64", (None,))})
    assert recipe_of(manifest({}, Schema("packed_text", {}), None)) == "byte_lm"
    thousand = Labels("label", 1, ("x",) * 1000)
    assert recipe_of(manifest({"train": 1_281_167}, labels=thousand)) == "imagenet_resnet50"
    assert recipe_of(manifest({"train": 100}, labels=thousand)) == "images"
    for schema, labels in (
        (PHOTOS, None),
        (several, NAMES),
        (many, NAMES),
        (Schema("opaque", {}), None),
    ):
        assert recipe_of(manifest({}, schema, labels)) is None
        assert "trainer" not in commands(manifest({"train": 1}, schema, labels))


def program_of(manifest):
    return read_page(dataset_page(manifest, [], None, ""))["How to read it"][-1]


def test_the_program_reads_a_batch_of_any_dataset(write_dataset, tmp_path, capsys):
    photo = encoded(Image.new("RGB", (30, 20)), "PNG")
    table = Schema("table", {"x": Feature("int64"), "name": Feature("bytes", content="text")})
    for schema, record, told in (
        (PHOTOS, {"image": photo, "label": 1}, "(5, 224, 224, 3)"),
        (table, {"x": 1, "name": b"a"}, "(5,)"),
    ):
        directory = tmp_path / f"it's a {schema.name}"
        write_dataset(directory, {"test": [[record] * 5], "train": [[]]}, schema)
        program = program_of(read_manifest(str(directory)))
        shown = "print({key: value.shape for key, value in batch.items()}); break"
        exec(compile(program.replace("...", shown), "program", "exec"), {})
        assert told in capsys.readouterr().out


def test_the_program_for_opaque_records_shows_one():
    program = program_of(manifest({"train": 3}, Schema("opaque", {}), None))
    assert program.splitlines()[-1] == "print(len(records), records[0])"
    assert "train_dataset" not in program
