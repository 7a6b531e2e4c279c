"""Labels in words: the most and the least frequent of many, and those that are no class."""

from pipeline.describing.labels import label_rows, occurring, outside
from pipeline.shards.schema import Labels


def test_only_the_most_and_least_frequent_of_many_labels_are_shown():
    rows, told = label_rows({label: label + 1 for label in range(100)}, 6, str)
    assert rows == [("99", 100), ("98", 99), ("97", 98), ("2", 3), ("1", 2), ("0", 1)]
    assert told == "Only the 3 most frequent and the 3 least frequent labels are shown."


def test_labels_outside_the_classes_are_counted_separately():
    labels = Labels("label", 1, ("cat", "dog"))
    assert occurring(labels, {1: 5, 7: 2, 0: 1}) == "1 of 2 classes occur"
    assert outside(labels, {1: 5, 7: 2, 0: 1}) == "3 labels are outside 1..2."
    assert outside(labels, {1: 5, 0: 1}) == "1 label is outside 1..2."
    assert outside(labels, {1: 5, 2: 1}) == ""
