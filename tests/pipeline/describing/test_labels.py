"""Labels in words: the most and the least frequent of many, and those that are no class."""

from pipeline.describing.labels import label_rows, occurring, outside
from pipeline.shards.schema import Labels


def test_only_the_most_and_least_frequent_of_many_labels_are_shown():
    labels = Labels("label", 0, tuple("abcdefgh"))
    rows, told = label_rows(labels, {label: label + 1 for label in range(8)}, 6)
    assert rows == [("7 h", 8), ("6 g", 7), ("5 f", 6), ("2 c", 3), ("1 b", 2), ("0 a", 1)]
    assert told == "Only the 3 most frequent and the 3 least frequent labels are shown."


def test_classes_without_records_are_shown_with_zero():
    rows, told = label_rows(Labels("label", 1, ("cat", "dog", "elk")), {3: 5, 1: 2, 7: 1}, 6)
    assert rows == [("1 cat", 2), ("2 dog", 0), ("3 elk", 5), ("7 (outside the range)", 1)]
    assert not told


def test_labels_outside_the_classes_are_counted_separately():
    labels = Labels("label", 1, ("cat", "dog"))
    assert occurring(labels, {1: 5, 7: 2, 0: 1}) == "1 of 2 classes occurs"
    assert outside(labels, {1: 5, 7: 2, 0: 1}) == "3 labels are outside 1..2."
    assert outside(labels, {1: 5, 0: 1}) == "1 label is outside 1..2."
    assert outside(labels, {1: 5, 2: 1}) == ""
