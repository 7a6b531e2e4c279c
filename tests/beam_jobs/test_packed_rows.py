"""Records that are made of several pieces of raw data, on their way from packed files to shards."""

import json
import random

import pytest
from converted import ledger_of, records_of
from stages import without_beam

from beam_jobs.rows import packed_rows
from beam_jobs.split import packed_files, plan
from converters import table_to_gcs, text_to_gcs
from converters.text import converter as text_converter
from pipeline.errors import ConversionError, StorageError
from pipeline.raw import blocks
from pipeline.shards.naming import ranks
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")

ROWS = 3000
SHARDS = 3


# what decides how the work is cut, and values other than the usual ones
CUTS = {
    "many packed files": [
        (packed_files, "_LEAST_BYTES", 1 << 15),
        (blocks, "PIECE_BYTES", 1 << 12),
        (text_converter, "_WINDOW_BYTES", 1 << 13),
    ],
    "reads of few rows": [(packed_rows, "_READ_BYTES", 1 << 8), (packed_rows, "_ROWS_AT_ONCE", 7)],
    "reads of some rows": [(packed_rows, "_READ_BYTES", 1 << 12)],
    "buckets in parts": [(plan, "_PACKED_AT_ONCE", 20)],
}


@pytest.fixture
def cut(monkeypatch):
    return lambda name: [monkeypatch.setattr(*each) for each in CUTS[name]]


def key_of(row):
    """Every hundredth has that of a row in another table, and in another packed file."""
    return f"k{row - 449 if row % 100 == 99 and row > 500 else row}"


DUPLICATES = 25


def tables():
    r = random.Random(0)
    lines = [f'{key_of(row)},{r.random()},"{row}"\n' for row in range(ROWS)]
    return {f"train-{n}.csv": "key,a,b\n" + "".join(lines[n::3]) for n in range(3)}


def documents():
    r = random.Random(0)
    texts = ("".join(r.choices("abc d", k=r.randrange(90))) + "." for _ in range(ROWS))
    return {"train.jsonl": "".join(json.dumps({"text": text}) + "\n" for text in texts)}


def convert(files, directory, out, *flags):
    (directory / "raw").mkdir(exist_ok=True)
    for name, text in files.items():
        if not (directory / "raw" / name).exists():  # a new file is another version
            (directory / "raw" / name).write_text(text)
    command = text_to_gcs if "train.jsonl" in files else table_to_gcs
    options = [f"--raw-data-dir={directory}/raw", f"--output={out}", f"--num-train-shards={SHARDS}"]
    assert command.main([*options, *flags]) == 0


KEYS = ("--max-bad-records=30", "--key-column=key")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """A conversion of the tables."""
    directory = tmp_path_factory.mktemp("usual")
    with without_beam():
        convert(tables(), directory, directory / "out", *KEYS)
    return directory / "out"


@pytest.mark.parametrize("name", CUTS)
def test_how_the_work_is_cut_changes_no_byte_and_no_rejected_row(
    name, usual, tmp_path, shard_digests, cut
):
    cut(name)
    convert(tables(), tmp_path, tmp_path / "out", *KEYS)
    assert shard_digests(tmp_path / "out") == shard_digests(usual)
    assert ledger_of(tmp_path / "out", "train") == ledger_of(usual, "train")


def test_a_repeated_key_is_rejected(usual):
    rejected = ledger_of(usual, "train")
    assert len(rejected) == DUPLICATES
    assert "duplicate key" in rejected["train/k150"]


def test_of_rows_with_one_key_the_first_in_the_raw_data_is_kept(tmp_path, cut):
    cut("many packed files")
    convert(tables(), tmp_path, tmp_path / "out", *KEYS)
    kept = {record["key"][0]: record["b"][0] for record in records_of(tmp_path / "out", "train")}
    by_place = sorted(range(ROWS), key=lambda row: (row % 3, row), reverse=True)
    assert kept == {key_of(row).encode(): row for row in by_place}
    assert len(kept) == ROWS - DUPLICATES


def test_of_rows_with_one_key_in_one_table_the_first_line_is_kept(tmp_path):
    lines = "".join(f"k{row % 9},{row}\n" for row in range(30))
    convert({"train.csv": f"key,a\n{lines}"}, tmp_path, tmp_path / "out", *KEYS)
    kept = {record["a"][0] for record in records_of(tmp_path / "out", "train")}
    assert kept == {*range(9)}


@pytest.mark.parametrize(("make", "flags"), [(tables, ()), (documents, ("--text-column=text",))])
def test_gathering_makes_a_request_per_packed_file_and_shard(
    make, flags, tmp_path, cut, bucket, gcs_server
):
    cut("many packed files")
    gcs_server.reset()
    convert(make(), tmp_path, f"{bucket}/out", *flags)
    num_files = len(gcs_server.requests("POST /upload.*_scratch"))
    assert num_files > 3
    assert len(gcs_server.requests("GET .*_scratch.*alt=media")) == num_files * SHARDS


def test_a_shard_without_rows_is_written(tmp_path):
    convert({"train.csv": "key,a\nk,1\n"}, tmp_path, tmp_path / "out")
    assert len(records_of(tmp_path / "out", "train")) == 1
    assert len([*(tmp_path / "out").glob("train-*")]) == SHARDS


def stopped(directory, monkeypatch):
    """A conversion of tables that ends between packing and gathering; its packed files."""
    monkeypatch.setattr("beam_jobs.stages.check_scanned", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError):
        convert(tables(), directory, directory / "out", *KEYS)
    monkeypatch.undo()
    return sorted((directory / "out/_scratch").glob("train*"))


def test_a_file_that_was_packed_from_other_parts_of_the_raw_data_is_refused(tmp_path, monkeypatch):
    assert len(stopped(tmp_path, monkeypatch)) == 3
    monkeypatch.setattr(blocks, "PIECE_BYTES", 1 << 12)
    with pytest.raises(ConversionError, match=r"_scratch/train\S+ was packed from other parts"):
        convert(tables(), tmp_path, tmp_path / "out", *KEYS)


def test_another_plan_is_refused_for_that_reason_also_where_nothing_may_be_deleted(
    tmp_path, monkeypatch
):
    def delete(self, path):
        raise StorageError(f"no permission to delete {path}")

    convert(tables(), tmp_path, tmp_path / "out", *KEYS)
    monkeypatch.setattr(LocalStorage, "delete", delete)
    with pytest.raises(ConversionError, match="another plan"):
        convert(tables(), tmp_path, tmp_path / "out", *KEYS, "--seed=5")


@pytest.mark.parametrize("part", ["key", "payload"])
def test_a_damaged_row_is_named_whether_it_is_written_or_rejected(part, tmp_path, monkeypatch):
    for path in stopped(tmp_path, monkeypatch):
        data = path.read_bytes()
        # each row ends with offset, crc32c, key size, two columns and the check
        at = (
            data.index(b"train/k150") + (9 if part == "key" else -3)
            if b"train/k150" in data
            else -1
        )
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] if at > 0 else data)
    with pytest.raises(ConversionError, match=r"_scratch/train\S+ is damaged at byte \d+\. Remove"):
        convert(tables(), tmp_path, tmp_path / "out", *KEYS)


def test_rows_of_equal_rank_are_in_the_order_of_their_keys(
    tmp_path, shard_digests, monkeypatch, cut
):
    monkeypatch.setattr(packed_files, "ranks", lambda *_: ranks(*_) >> 53 << 53)
    convert(tables(), tmp_path, tmp_path / "one", *KEYS)
    cut("many packed files")
    convert(tables(), tmp_path, tmp_path / "many", *KEYS)
    assert shard_digests(tmp_path / "one") == shard_digests(tmp_path / "many")
    keys = [record["key"][0] for record in records_of(tmp_path / "one", "train")]
    assert len(keys) == ROWS - DUPLICATES
    places = [(int(ranks(0, "train", [b"train/" + key])[0]) >> 53, key) for key in keys]
    assert places == sorted(places)
    assert len({rank for rank, _ in places}) < len(keys) - 500
