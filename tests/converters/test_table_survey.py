"""Large tables are looked at by a job before they are converted, in pieces. test_rows_as_columns has random ones."""

import json

import pyarrow as pa
import pytest
from converted import records_of
from pyarrow import parquet
from stages import Stages

from beam_jobs.graph import Flow
from converters import table_to_gcs
from converters.table import survey
from converters.table.finding import Finder
from pipeline.errors import ConversionError, InfeedError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.storage.schemes import open_storage

ROWS = [f'{i},"{i}\n",{i % 3}' for i in range(100)]


@pytest.fixture
def convert(tmp_path, monkeypatch, capsys):
    """convert(files, *options, piece_bytes) -> (error or exit status, what was printed before Beam ran)."""

    def converted(files, *options, piece_bytes, out="out"):
        monkeypatch.setattr(survey, "_PIECE_BYTES", piece_bytes)
        raw = tmp_path / "raw"
        raw.mkdir(exist_ok=True)
        for name, content in files.items():
            if isinstance(content, pa.Table):
                parquet.write_table(content, raw / name, row_group_size=10)
            else:
                (raw / name).write_bytes(content)
        try:
            status = table_to_gcs.main(
                [f"--raw-data-dir={raw}", f"--output={tmp_path / out}", *options]
            )
        except InfeedError as e:
            status = type(e), str(e)
        return status, capsys.readouterr().out

    return converted


def csv_of(*rows):
    return "\n".join(["a,b,c", *rows]).encode()


@pytest.mark.parametrize(
    ("files", "options"),
    [
        ({"train.csv": csv_of(*["1,2"] * 100)}, ()),
        ({"train.csv": csv_of(*ROWS, *["1,2"] * 1100)}, ()),
        ({"train.csv": csv_of(*ROWS)}, ("--columns=nope=int64",)),
        ({"train.csv": csv_of(*ROWS)}, ("--columns=*=skip",)),
        ({"train.csv": csv_of(*ROWS), "train-1.parquet": b"PAR1"}, ()),
        ({"train.csv": csv_of(*ROWS), "train-1.csv": b"\xff\xfea"}, ()),
        ({"train.parquet": pa.table({"a": [[1], None] * 50, "b": [{"x": 1}] * 100})}, ()),
    ],
    ids=["all bad", "many bad", "unknown", "none left", "no Parquet", "UTF-16", "nested"],
)
def test_a_job_says_of_bad_tables_what_is_said_where_they_are_read_here(convert, files, options):
    whole = convert(files, *options, piece_bytes=10**9)
    assert whole[0] != 0
    assert convert(files, *options, piece_bytes=200) == whole


def test_the_columns_and_a_dry_run_of_tables_in_pieces_are_those_of_whole_ones(convert, out):
    files = {
        "train.csv": csv_of(*ROWS, '7,"\n\n\n\n\n\n\n\n\n\n\n\n",1'),
        "train-1.parquet": pa.table({"a": range(100), "b": ["x", None] * 50, "c": [0.5] * 100}),
    }
    whole = convert(files, "--dry-run", piece_bytes=10**9)
    assert whole[0] == 0
    assert "cells have more than 10 line ends, the first in" in whole[1]
    assert convert(files, "--dry-run", piece_bytes=200) == whole
    assert not out.exists()
    note = whole[1].splitlines()[0]
    assert convert(files, piece_bytes=200)[1].startswith(note)


@pytest.mark.parametrize("options", [("--target-columns=a,c",), ("--label-column=c",)])
def test_a_table_is_cut_whatever_is_to_be_found_in_it(convert, monkeypatch, options):
    pieces = {}
    monkeypatch.setattr(table_to_gcs, "run", lambda *args, **given: pieces.update(given["pieces"]))
    convert({"train.csv": csv_of(*ROWS)}, "--text-column=b", *options, piece_bytes=200)
    (of_table,) = pieces.values()
    assert len(of_table) > 4
    assert [piece.begin for piece in of_table[1:]] == [piece.end for piece in of_table[:-1]]


def test_a_table_is_cut_also_where_no_row_begins_after_the_last_cut(convert, monkeypatch):
    pieces = {}
    monkeypatch.setattr(table_to_gcs, "run", lambda *args, **given: pieces.update(given["pieces"]))
    rows = [*ROWS, f"7,{'x' * 300},1", ""]
    convert({"train.csv": csv_of(*rows)}, "--text-column=b", piece_bytes=200)
    assert len(*pieces.values()) > 4


def test_a_table_of_one_cell_is_read_as_a_whole_where_no_piece_can_be_told(convert, tmp_path):
    files = {"train.csv": csv_of('1,"' + "\n" * 1000 + '",2')}
    assert convert(files, piece_bytes=100)[0] == 0
    assert convert(files, piece_bytes=10**9, out="whole")[0] == 0
    shards = [path.read_bytes() for path in tmp_path.glob("*/train-*")]
    assert len(shards) == 2
    assert shards[0] == shards[1]


@pytest.mark.slow
def test_dask_writes_the_bytes_of_whole_tables_in_one_process(convert, tmp_path):
    files = {
        "train.csv": csv_of(*ROWS),
        "train-1.parquet": pa.table({"a": range(100), "b": ["x", None] * 50, "c": [0.5] * 100}),
    }
    options = ("--num-train-shards=3",)
    assert convert(files, *options, piece_bytes=10**9)[0] == 0
    dask = ("--runner=dask", "--local-processes=2")
    assert convert(files, *options, *dask, piece_bytes=200, out="dask")[0] == 0
    for path in tmp_path.glob("out/train-*"):
        assert path.read_bytes() == (tmp_path / "dask" / path.name).read_bytes()


def test_an_error_that_is_gone_is_not_raised_again(convert, monkeypatch, without_beam):
    def find(*args):
        raise RawDataError("this pyarrow cannot read it")

    files = {"train.csv": csv_of(*ROWS)}
    with monkeypatch.context() as context:
        context.setattr(Finder, "find", find)
        assert convert(files, piece_bytes=200)[0] == (RawDataError, "this pyarrow cannot read it")
    assert convert(files, piece_bytes=200)[0] == 0


def test_what_was_seen_of_a_table_that_changed_meanwhile_is_not_believed(
    convert, tmp_path, monkeypatch, without_beam
):
    def find(*args):
        (tmp_path / "raw/train.csv").write_bytes(b"a,b,c\n")
        return original(*args)

    original = Finder.find
    monkeypatch.setattr(Finder, "find", find)
    _, message = convert({"train.csv": csv_of(*ROWS)}, piece_bytes=200)[0]
    assert "train.csv has 6 bytes" in message
    assert "It changed during the conversion" in message


def test_what_a_killed_survey_was_writing_is_removed(convert, out, without_beam):
    left = out / "_scratch/.survey.0123456789abcdef-0.1.01234567.tmp"
    left.parent.mkdir(parents=True)
    left.touch()
    assert convert({"train.csv": csv_of(*ROWS)}, piece_bytes=200)[0] == 0
    assert not left.exists()


@pytest.mark.parametrize(
    ("before", "options", "after"),
    [
        (csv_of(*ROWS).replace(b"\n9,", b"\nx,"), (), {"train.csv": csv_of(*ROWS)}),
        (csv_of(*ROWS), ("--columns=a=skip",), {}),
    ],
    ids=["another table", "other options"],
)
def test_what_an_interrupted_command_saw_is_believed_of_the_same_table_and_options_only(
    convert, tmp_path, monkeypatch, without_beam, before, options, after
):
    with monkeypatch.context() as context:
        context.setattr(table_to_gcs, "run", lambda *args, **given: 0)
        assert convert({"train.csv": before}, *options, piece_bytes=200)[0] == 0
    assert [*tmp_path.glob("out/_scratch/survey.*")]
    status, said = convert(after, piece_bytes=200)
    assert status == 0
    assert "columns: a int64 (0, 1), b int64 (" in said


def test_packed_files_of_pieces_are_removed_where_the_plan_is_refused(
    convert, tmp_path, without_beam
):
    files = {"train.csv": csv_of(*ROWS)}
    assert convert(files, piece_bytes=10**9)[0] == 0
    kind, message = convert(files, "--columns=a=text", piece_bytes=200)[0]
    assert (kind, "another plan" in message) == (ConversionError, True)
    assert not [*tmp_path.glob("out/_scratch/train*")]


def test_of_rows_with_one_key_in_pieces_the_first_line_is_kept_whichever_is_read_first(
    convert, out, monkeypatch, without_beam
):
    monkeypatch.setattr(Stages, "flow", staticmethod(lambda numbers: Flow(numbers[::-1])))
    files = {"train.csv": csv_of(*(f"{i % 30},{i},1" for i in range(100)))}
    options = ("--key-column=a", "--max-bad-records=70")
    assert convert(files, *options, piece_bytes=200)[0] == 0
    assert {record["b"][0] for record in records_of(out)} == {*range(30)}


def test_a_template_is_made_without_a_job_before_it(convert, monkeypatch):
    monkeypatch.setattr(survey, "survey", lambda *args: pytest.fail("a job"))
    monkeypatch.setattr(table_to_gcs, "run", lambda *args, **given: 0)
    options = ("--runner=dataflow", "--project=p", "--template_location=gs://bucket/template")
    assert convert({"train.csv": csv_of(*ROWS)}, *options, piece_bytes=200)[0] == 0


def test_classes_that_a_table_of_parquet_names_are_the_same_in_pieces(
    convert, tmp_path, without_beam
):
    features = {"a": {"names": ["zebra", "ant"], "_type": "ClassLabel"}}
    table = pa.table({"a": [0, 1] * 50}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    assert convert({"train.parquet": table}, piece_bytes=10**9, out="whole")[0] == 0
    assert convert({}, piece_bytes=200)[0] == 0
    whole, pieces = (read_manifest(str(tmp_path / out)) for out in ("whole", "out"))
    assert whole.splits == pieces.splits
    assert whole.schema == pieces.schema


def test_types_of_a_table_of_parquet_without_rows_are_found_in_pieces_too(convert):
    empty = pa.table({name: pa.array([], pa.float32()) for name in "abc"})
    files = {"train.csv": csv_of(*ROWS), "train-1.parquet": empty}
    whole = convert(files, "--dry-run", piece_bytes=10**9)
    assert whole[0] == 0
    assert "columns: a float32 (" in whole[1]
    assert convert(files, "--dry-run", piece_bytes=200) == whole


@pytest.mark.slow
def test_in_a_bucket_pieces_give_the_same_bytes_and_no_file_of_the_survey_stays(
    bucket, convert, tmp_path, monkeypatch
):
    storage = open_storage(bucket)
    with storage.publish(f"{bucket}/raw/train.csv") as sink:
        sink.write(csv_of(*ROWS))
    monkeypatch.setattr(survey, "_PIECE_BYTES", 200)
    assert table_to_gcs.main([f"--raw-data-dir={bucket}/raw", f"--output={bucket}/out"]) == 0
    assert convert({"train.csv": csv_of(*ROWS)}, piece_bytes=10**9)[0] == 0
    (shard,) = tmp_path.glob("out/train-*")
    assert storage.read(f"{bucket}/out/{shard.name}") == shard.read_bytes()
    assert not storage.list(f"{bucket}/out/_scratch")


@pytest.mark.parametrize("empty", [0, 20, 4_999])
@pytest.mark.parametrize("piece_bytes", [10_000, 10**9])
def test_an_empty_cell_makes_no_text_of_a_category_wherever_it_is(convert, empty, piece_bytes):
    colors = ["" if i == empty else ("red", "green", "7")[i % 3] for i in range(5_000)]
    files = {
        "train.csv": "\n".join(["n,color", *(f"{i},{c}" for i, c in enumerate(colors))]).encode()
    }
    _, printed = convert(files, "--dry-run", piece_bytes=piece_bytes)
    assert "color category of 3 classes (" in printed
    assert "; 1 missing)" in printed


@pytest.mark.parametrize("end", ["", "\n", "\n" * 500])
def test_pieces_in_which_no_row_begins_are_left_out(convert, tmp_path, end):
    files = {"train.csv": csv_of(*ROWS, "x" * 300 + ",1,2") + end.encode()}
    assert convert(files, "--columns=a=text", piece_bytes=100)[0] == 0
    assert convert(files, "--columns=a=text", piece_bytes=10**9, out="whole")[0] == 0
    (one,), (other,) = (list((tmp_path / out).glob("train-*")) for out in ("out", "whole"))
    assert one.read_bytes() == other.read_bytes()


def test_what_was_seen_of_a_table_of_another_name_is_not_taken_for_it(
    convert, tmp_path, out, monkeypatch
):
    folder = tmp_path / "raw/year=2026"
    folder.mkdir(parents=True)
    with monkeypatch.context() as context:
        context.setattr(table_to_gcs, "run", lambda *args, **given: 0)
        files = {"year=2026/train.csv": csv_of(*ROWS)}
        convert(files, "--validation-fraction=0.1", piece_bytes=200)
    assert list(tmp_path.glob("out/_scratch/survey.*"))
    assert table_to_gcs.main([f"--raw-data-dir={folder}", f"--output={out}"]) == 0
    assert list(tmp_path.glob("out/_scratch/*")) == []  # nor does that of before stay
