"""Examples in memory as records."""

import numpy as np
import pytest

from pipeline.errors import EmptySplitError, SchemaError
from pipeline.shards.example import encode_example
from pipeline.shards.record import crc32c
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import Records

SCHEMA = Schema("words", {"word": Feature("bytes"), "label": Feature("int64")})
LABELS = Labels("label", 0, ("a", "b"))
WORDS = [{"word": b"x" * number, "label": number % 2} for number in range(5)]


def test_example_records_have_the_payloads_that_a_conversion_would_write():
    records = ExampleRecords("words", SCHEMA, WORDS, LABELS)
    assert isinstance(records, Records)
    payloads = [encode_example(SCHEMA, word) for word in WORDS]
    opened = open_dataset(records)
    assert list(opened) == payloads
    assert opened.take([4, 0, 4]) == [payloads[4], payloads[0], payloads[4]]
    assert records.info.crcs.tolist() == [crc32c(payload) for payload in payloads]
    assert records.info.num_bytes == records.info.lengths.sum() == sum(map(len, payloads))
    assert (opened.labels, opened.layout) == (LABELS, SCHEMA)
    assert list(open_dataset(records, "[1:3]")) == payloads[1:3]


def test_other_examples_have_another_fingerprint():
    prints = {ExampleRecords(name, SCHEMA, words).info.fingerprint for name, words in (("a", WORDS), ("b", WORDS[:4]))}
    assert len(prints | {ExampleRecords("c", SCHEMA, WORDS).info.fingerprint}) == 2


def test_no_examples_and_unfitting_examples_are_refused():
    with pytest.raises(EmptySplitError, match="words has no records, so there is nothing to read."):
        ExampleRecords("words", SCHEMA, [])
    with pytest.raises(SchemaError, match="'label' is missing"):
        ExampleRecords("words", SCHEMA, [{"word": b""}])
    assert ExampleRecords("words", SCHEMA, WORDS).weigh(np.array([0, 1])) > 500
