"""The file names of predictions: those of the records, whatever part of them is asked for."""

from pipeline.shards.schema import Feature, Schema
from pipeline.sources.open_dataset import open_dataset
from trainer.recipes import image_data
from trainer.recipes.image_data import FileNames, file_name_key


def test_names_are_those_of_the_records_across_blocks_and_from_any_number(digits, monkeypatch):
    records = open_dataset(str(digits[1]), "validation")
    expected = [example["image/filename"].decode() for example in records.examples(["image/filename"])]
    monkeypatch.setattr(image_data, "BLOCK_BYTES", 40 * 1024)  # some 30 records
    names = FileNames(records, "image/filename")
    assert [names[number] for number in range(len(records))] == expected
    assert [names[number] for number in (367, 0, 31, 29)] == [expected[number] for number in (367, 0, 31, 29)]
    assert FileNames(records, "image/encodings")[5] is None


def test_the_feature_with_the_file_name_is_that_of_infeed_or_of_tfds():
    text = Feature("bytes", content="text")
    assert file_name_key(Schema("a", {"image/filename": text})) == "image/filename"
    assert file_name_key(Schema("a", {"file_name": text, "label": Feature("int64")})) == "file_name"
    assert file_name_key(Schema("a", {"file_name": Feature("int64")})) is None
