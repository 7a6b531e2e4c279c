"""Programs of version 0.2 work for one version more: sources with attributes, and reading those of ours."""

from dataclasses import fields

import numpy as np
import pytest

from pipeline.datasets import cached, eval_dataset, train_dataset
from pipeline.errors import OptionError
from pipeline.records import open_dataset
from pipeline.sources.in_memory import ArrayRecords
from pipeline.sources.records import RecordsInfo


class OldSource:
    """Records as version 0.2 wanted them."""

    whole_files = labels = verify_command = None
    remote = False

    def __init__(self):
        self.rows = inner = ArrayRecords({"number": np.arange(10)})
        self.name, self.fingerprint, self.layout = "mine", inner.info.fingerprint, inner.info.layout
        self.num_records, self.num_bytes = inner.info.num_records, inner.info.num_bytes
        self.crcs, self.lengths, self.source_starts = inner.info.crcs, None, np.array([0, 4, 10])

    def block_starts(self, block_records):
        return self.rows.block_starts(block_records)

    def weigh(self, record_ids):
        return self.rows.weigh(record_ids)

    def read(self, groups, ahead_bytes):
        return self.rows.read(groups, ahead_bytes)

    def where(self, record_id):
        return self.rows.where(record_id)


def test_a_source_with_attributes_in_place_of_an_info_is_adapted_with_a_warning():
    old = OldSource()
    with pytest.warns(DeprecationWarning, match=r"OldSource has the attributes name, .* = RecordsInfo\(name="):
        records = open_dataset(old)
    for name in {field.name for field in fields(RecordsInfo)} - {"totals"}:
        assert getattr(records.info, name) is getattr(old, name), name
    assert records.info.totals == {}
    assert list(records) == list(open_dataset(old.rows))
    data = eval_dataset(records, global_batch=4)
    assert [batch["number"].tolist() for batch in data.batches()] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 0, 0]]
    assert train_dataset(records, global_batch=4).info.provenance["source_starts"] == [0, 4, 10]
    with pytest.warns(DeprecationWarning, match="OldSource has"):
        assert cached(OldSource(), "ram").info.name == "mine"


def test_an_old_source_without_a_required_attribute_is_refused():
    lacking = OldSource()
    del lacking.fingerprint
    with pytest.raises(OptionError, match="OldSource is not a dataset"):
        open_dataset(lacking)


def test_values_of_info_are_readable_as_attributes_with_a_deprecation_warning():
    records = open_dataset({"number": np.arange(10)})
    for thing in (records, cached(records, "ram"), train_dataset(records, global_batch=2)):
        with pytest.warns(DeprecationWarning, match=rf"{type(thing).__name__}\.fingerprint .* use \.info\.fingerprint"):
            assert thing.fingerprint == records.info.fingerprint
        with pytest.raises(AttributeError, match="no attribute 'shards'"):
            getattr(thing, "shards")  # noqa: B009
