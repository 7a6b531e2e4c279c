"""The line about predictions: how many agree with their label, and what the others are taken for."""

from trainer.command.running import Agreement


def told(*records):
    agreement = Agreement()
    for record in records:
        agreement.add(record)
    return str(agreement)


def named(label, predicted):
    return {"class": 0, "label": 0, "class_name": predicted, "label_name": label}


def test_the_most_frequent_confusions_are_named():
    records = [named("cat", "dog")] * 3 + [named("dog", "cat")] * 2 + [named("cat", "cat")] * 5
    assert told(*records) == ": 5 agree with their label, 5 do not; most often cat as dog (3), dog as cat (2)"
    assert told({"class": 1, "label": 2}, {"class": 3, "label": 3}).endswith("1 do not; most often 2 as 1 (1)")
    assert told({"class": 3, "label": 3}) == ": 1 agree with their label, 0 do not"


def test_predictions_without_class_and_label_are_not_counted():
    assert told({"score": 0.5}, {"class": [1, 2], "label": 1}, {"class": 1}) == ""
    assert told({"class": 1, "label": 1, "class_name": "cat"}) == ": 1 agree with their label, 0 do not"
