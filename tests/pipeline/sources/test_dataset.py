"""Records by number: what open_dataset returns, over every kind of source, in threads and in other processes."""

import gc
import json
import pickle
import re
import struct
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from record_sources import SOURCES, Source

from pipeline.errors import (
    CorruptRecordError,
    OptionError,
    RecordNumberError,
    SchemaError,
    StorageError,
)
from pipeline.pages.shown_records import show_records
from pipeline.parsing import RecordParser
from pipeline.shards.example import encode_example
from pipeline.shards.schema import Feature, Schema
from pipeline.sources import payload_reader as payloads
from pipeline.sources.dataset import Dataset
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from pipeline.sources.records import fetch, intact

N = 37
direct = [source for source in SOURCES if source.open.__name__ != "open_mixture"]


def in_order_only(source: Source, dataset: Dataset) -> bool:
    return dataset.info.whole_files is not None and "proof" in source.cannot


@pytest.fixture(params=direct, ids=lambda source: source.name)
def source(request):
    return request.param


@pytest.fixture
def dataset(source, written):
    return open_dataset(source.records(written(source)))


def test_a_record_by_number_is_the_record_that_was_written(source, dataset):
    due = [source.payload(i) for i in range(N)]
    assert (len(dataset), dataset.num_records) == (N, N)
    assert list(dataset) == due  # in order, from every source
    if in_order_only(source, dataset):
        for read in (lambda: dataset[5], lambda: dataset.take([5]), lambda: dataset.examples()[5]):
            with pytest.raises(
                OptionError, match=r"record 5 cannot .* index: infeed index .* list\(rec"
            ):
                read()
        return
    assert (
        [dataset[i] for i in range(N)]
        == due
        == [r[0] for r in map(intact, fetch(dataset, np.arange(N)))]
    )
    assert [dataset[-1], dataset[np.int64(3)], dataset[np.array(-N)]] == [due[-1], due[3], due[0]]
    assert dataset.take(np.array([5, -1, 5])) == [due[5], due[-1], due[5]]
    assert dataset.take([]) == []
    assert list(dataset[10:20][2:]) == due[12:20]
    assert dataset[10:][-1] == due[-1]


def test_parsed_records_are_those_that_were_written(source, dataset):
    examples = dataset.examples()
    found = list(examples)
    if not in_order_only(source, dataset):
        assert repr([found[4], *examples[5:7]]) == repr([examples[4], *examples.take([5, 6 - N])])
    if "features" in source.cannot:
        assert found == [{"text": source.payload(i)} for i in range(N)]
        return
    assert [(int(each["number"]), float(each["half"])) for each in found] == [
        (i, i / 2) for i in range(N)
    ]
    assert {type(each["half"]) for each in found} == {np.float32}
    assert [each.keys() for each in dataset.examples(["half"])] == [{"half"}] * N
    with pytest.raises(OptionError, match=r"no feature 'haf'\. Did you mean 'half'\?"):
        dataset.examples(["haf"])


def test_a_pickled_copy_and_two_threads_read_the_same(source, dataset):
    due, read = (
        [source.payload(i) for i in range(N)],
        list if in_order_only(source, dataset) else by_number,
    )
    copy = pickle.loads(pickle.dumps(dataset))
    assert (copy.info.fingerprint, copy.info.name, read(copy)) == (
        dataset.info.fingerprint,
        dataset.info.name,
        due,
    )
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(read(copy))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [due, due]


def by_number(dataset: Dataset) -> list[bytes]:
    return [dataset[i] for i in range(N)]


def test_a_damaged_record_is_named_as_in_reading_and_the_others_are_read(
    source, written, write_dataset, tmp_path
):
    source.write(tmp_path / "data", range(N), write_dataset)
    dataset = open_dataset(source.records(tmp_path / "data"))
    if "damage" in source.cannot or in_order_only(source, dataset):
        return
    assert dataset[20] == source.payload(20)  # its file is open
    source.flip(tmp_path / "data", 20)
    (damaged,) = fetch(dataset, np.array([20]))
    if not isinstance(damaged, CorruptRecordError):  # a cache in RAM
        assert dataset[20] == source.payload(20)
        return
    for read in (
        lambda: dataset[20],
        lambda: dataset.take([1, 20]),
        lambda: list(dataset),
        lambda: dataset.examples()[20],
    ):
        with pytest.raises(CorruptRecordError) as error:
            read()
        assert str(error.value) == str(damaged)
    assert dataset[19] == source.payload(19)


PROGRAM = """
import json, multiprocessing, os, sys
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.open_dataset import open_dataset
from pipeline.storage import gcs_calls
os.environ["STORAGE_EMULATOR_HOST"] = "http://127.0.0.1:9"
records, n = open_dataset(sys.argv[1]), int(sys.argv[2])
found, mine = {"opener": [records[i].hex() for i in range(n)]}, gcs_calls.client()
with multiprocessing.get_context("spawn").Pool(1) as pool:
    found["spawned"] = [payload.hex() for payload in pool.map(records.__getitem__, range(n), chunksize=n)]
if not os.fork():
    forked = [records[i].hex() for i in range(n)]
    json.dump({"forked": forked, "own client": gcs_calls.client() is not mine}, open(sys.argv[3] + ".forked", "w"))
    os._exit(0)
os.wait()
json.dump(found | json.load(open(sys.argv[3] + ".forked")), open(sys.argv[3], "w"))
"""


@pytest.mark.slow
def test_spawned_and_forked_processes_read_the_same(written, run_forked, tmp_path):
    ours = SOURCES[0]
    code, printed = run_forked(
        ["-c", PROGRAM, str(written(ours)), str(N), str(tmp_path / "found")], timeout=120
    )
    assert code == 0, printed
    found, due = (
        json.loads((tmp_path / "found").read_text()),
        [ours.payload(i).hex() for i in range(N)],
    )
    assert found == {"opener": due, "spawned": due, "forked": due, "own client": True}


@pytest.mark.parametrize(
    ("number", "error", "text"),
    [
        (N, RecordNumberError, f"record {N} does not exist: .* has {N} records, -{N} to {N - 1}"),
        (-N - 1, IndexError, f"record -{N + 1} does not exist"),
        ("image", OptionError, r"'image' is not a record's number\. .* records\.examples\(\)\[i\]\['key'\]"),
        (1.0, OptionError, r"1\.0 is not a record's number"),
        ([1, 2], OptionError, r"\[1, 2\] is not a record's number.*records\.take\(\[i, j\]\)"),
        (slice(0, 9, 2), OptionError, r"step 2; it must be 1\. .* take\(numbers\)"),
        (slice(5, 5), OptionError, r"\[5:5\] selects none of 37"),
    ],
)  # fmt: skip
def test_an_invalid_record_number_is_one_error_with_the_valid_range(written, number, error, text):
    dataset = open_dataset(written(SOURCES[0]))
    for data in (dataset, dataset.examples()):
        with pytest.raises(error, match=text):
            data[number]


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_few_files_stay_open_and_a_file_that_is_gone_is_an_error(
    written, write_dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr(payloads, "FILES", 1)
    SOURCES[0].write(tmp_path / "data", range(N), write_dataset)
    dataset = open_dataset(tmp_path / "data")
    before = open_descriptors()
    for i in range(N):
        assert dataset[i] == SOURCES[0].payload(i) == dataset[-1 - (N - 1 - i)]
        assert dataset[N - 1 - i] == SOURCES[0].payload(N - 1 - i)
        assert open_descriptors() <= before + 1
    (tmp_path / "data/train-00000-of-00003").unlink()
    dataset[-1]  # drops the open file
    with pytest.raises(StorageError, match="cannot read .*train-00000-of-00003"):
        dataset[0]
    del dataset
    gc.collect()  # the error's traceback may hold it in a cycle
    assert open_descriptors() <= before


NUMBERS = {
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": st.floats(width=32),
    "bytes": st.binary(max_size=9),
}


@settings(max_examples=25)
@given(
    st.data(),
    st.sampled_from(list(NUMBERS)),
    st.sampled_from([(), (3,), (2, 2), (None,)]),
    st.booleans(),
)
def test_values_come_back_as_they_were_encoded(data, dtype, shape, optional):
    schema = Schema("one", {"x": Feature(dtype, shape, optional), "y": Feature("int64")})
    count = data.draw(st.integers(0, 5)) if None in shape else int(np.prod(shape))
    values = data.draw(st.lists(NUMBERS[dtype], min_size=count, max_size=count))
    there = not optional or data.draw(st.booleans())
    payload = encode_example(schema, {"x": values, "y": 1} if there else {"y": 1})
    found = RecordParser(schema, None)(payload)
    if not there:
        count = 0 if None in shape else count
        values = [b"" if dtype == "bytes" else 0] * count
    if dtype == "bytes" and not shape:
        assert found["x"] == values[0]
        return
    kind = object if dtype == "bytes" else dtype
    assert (found["x"].dtype, found["x"].shape) == (
        np.dtype(kind),
        (count,) if None in shape else shape,
    )
    assert np.array_equal(
        np.ravel(found["x"]), np.array(values, kind), equal_nan=dtype == "float32"
    )
    assert found["y"] == 1
    if shape:
        found["x"][...] = found["x"]  # may be written to


FIELDS = np.dtype(
    [("b", "?"), ("big", ">i4", (2,)), ("s", "S3"), ("many", "V2", (2,)), ("u", "u1")]
)


def test_fields_of_a_struct_are_in_native_order_and_bytes_keep_their_zeros():
    payload = struct.pack(">Bii3s4sB", 2, 7, -1, b"a", b"wxyz", 255)
    found = RecordParser(FIELDS, None)(payload)
    assert (found["b"], found["s"], found["u"], found["many"].tolist()) == (
        np.True_,
        b"a\0\0",
        255,
        [b"wx", b"yz"],
    )
    assert found["big"].tolist() == [7, -1]
    assert found["big"].dtype == np.dtype("=i4")
    found["big"][0] = 1  # may be written to


@pytest.mark.parametrize(
    ("layout", "payload", "text"),
    [
        (
            Feature("int64"),
            encode_example(Schema("", {"x": Feature("float32")}), {"x": 1.0}),
            "is a list of float32; .* int64",
        ),
        (Feature("int64"), encode_example(Schema("", {"x": Feature("bytes")}), {"x": b""}), "is a list of bytes; .* int64"),
        (Feature("int64", (2,)), encode_example(Schema("", {"x": Feature("int64")}), {"x": 1}), "has 1 values; .* 2"),
        (Feature("int64"), encode_example(Schema("", {}), {}), "'x' is missing"),
        (Feature("int64"), b"\x0a\x05ab", "not a tf.train.Example"),
        (FIELDS, b"short", "does not have the 17 bytes of its dtype; it has 5"),
    ],
)  # fmt: skip
def test_a_record_of_another_layout_is_named(layout, payload, text):
    layout = Schema("", {"x": layout}) if isinstance(layout, Feature) else layout
    records = ExampleRecords("made", Schema("", {}), [{}])
    records._payloads, records.info = [payload], replace(records.info, layout=layout)
    with pytest.raises(SchemaError, match=f"^made, record 0: .*{text}"):
        Dataset(records).examples()[-1]
    assert re.match(f"made, record 0: .*{text}", show_records(records, [0])[0].problem)
