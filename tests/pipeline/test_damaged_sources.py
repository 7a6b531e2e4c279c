"""What every source makes of data that have changed, been cut short, or are none: never other records in silence."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from host_batches import taken
from record_sources import SOURCES

from pipeline.datasets import DatasetInput, Mixture, eval_dataset, train_dataset
from pipeline.errors import CorruptRecordError, EmptySplitError, ShardError
from pipeline.shards.frames import crc32c
from pipeline.sources.records import fetch

N = 37
sources = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)


@sources
def test_other_data_of_the_same_sizes_have_another_fingerprint(
    source, written, tmp_path, write_dataset
):
    source.write(tmp_path / "data", range(N), write_dataset)
    mine = source.records(written(source)).info.fingerprint
    assert source.records(tmp_path / "data").info.fingerprint == mine
    others = source.records(written(source, "others")).info.fingerprint
    if "replacement" in source.cannot:  # it goes by sizes, which compression may change
        assert (others == mine) == (
            sizes_in(written(source, "others")) == sizes_in(written(source))
        )
    else:
        assert others != mine


def sizes_in(directory: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(directory.iterdir())]


@sources
@pytest.mark.parametrize("number", [0, 20, N - 1])
def test_a_changed_bit_is_named_and_costs_no_other_record(source, written, tmp_path, number):
    directory = Path(shutil.copytree(written(source), tmp_path / "data"))
    data = source.open(directory)
    records = data.records if isinstance(data, Mixture) else data
    path = source.flip(directory, number)
    if "survival" in source.cannot:
        with pytest.raises(ShardError, match=path.name):
            fetch(records, np.arange(N))
        return
    found = fetch(records, np.arange(N))
    assert [record[0] for i, record in enumerate(found) if i != number] == [
        source.payload(i) for i in range(N) if i != number
    ]
    if "change" in source.cannot:
        assert found[number][0] == source.payload(number)
        return
    if "damage" in source.cannot:  # it is delivered, with the checksum of what it is now
        assert source.payload(number) != found[number][0]
        assert found[number][1] == crc32c(found[number][0])
        return
    assert isinstance(found[number], CorruptRecordError)
    assert str(found[number]).startswith(records.where(number).partition(" (record")[0])
    with pytest.raises(CorruptRecordError, match="crc32c"):  # E11
        taken(
            eval_dataset(data, global_batch=4, keys=()) if source.evaluates else trained_on(data),
            count=3 * N,
        )


def trained_on(data: Mixture) -> DatasetInput:
    return train_dataset(data, global_batch=4, keys=())


@sources
def test_a_truncated_file_is_refused_on_opening_and_never_short_data(source, written, tmp_path):
    if "files" in source.cannot:
        return
    directory = Path(shutil.copytree(written(source), tmp_path / "data"))
    path, _ = source.byte_of(directory, N - 1)
    os.truncate(path, path.stat().st_size - 3)
    if "truncation" not in source.cannot:
        with pytest.raises(ShardError, match=path.name):  # E10
            source.open(directory)
        return
    records = source.records(directory)
    assert records.info.fingerprint != source.records(written(source)).info.fingerprint
    if "damage" not in source.cannot:
        with pytest.raises(ShardError, match=path.name):
            fetch(records, np.arange(N))


@sources
def test_a_source_without_records_is_refused(source, tmp_path, write_dataset):
    # E9
    with pytest.raises(
        EmptySplitError, match=r"nothing to (read|index|evaluate)|no records|selects none"
    ):
        source.write(tmp_path / "data", [], write_dataset)
        train_dataset(source.open(tmp_path / "data"), global_batch=1)
