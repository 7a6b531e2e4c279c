"""The command: its layouts, options and errors."""

import gzip
import json
import pickle
from pathlib import Path

import pytest
from raw_data.texts import RawTexts
from tokenizers import Tokenizer, models, pre_tokenizers

from beam_jobs.converter import files_of
from converters import text_to_gcs
from converters.raw.splits import HeldOut
from converters.text import documents as layouts
from converters.text.documents import DocumentFormat, find_texts
from pipeline.commands import describe, verify
from pipeline.errors import ConversionError, OptionError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.sources.open_dataset import open_dataset
from pipeline.tokenizers import read_text_info

pytestmark = pytest.mark.usefixtures("without_beam")


def write(directory, files):
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def convert(raw, out, *flags):
    return text_to_gcs.main([f"--raw-data-dir={raw}", f"--output={out}", *flags])


def decoded(out, split):
    tokenizer = read_text_info(str(out)).tokenizer
    rows = open_dataset(str(out), split).examples(["tokens"])
    return sorted(tokenizer.decode(row["tokens"]) for row in rows)


def test_quotes_may_mean_nothing(tmp_path, out):
    texts = ['"one', "two", 'three"', 'fo"ur']
    data = "".join(f"{i}\t{text}\n" for i, text in enumerate(texts))
    raw = write(tmp_path / "raw", {"train.tsv": f"n\ttext\n{data}"})
    convert(raw, out, "--quote=none", "--sequence-length=8")
    assert decoded(out, "train") == sorted(texts)


@pytest.mark.parametrize(
    "names", [("train/a.txt", "val/b.txt", "test/c.txt"), ("train-1.txt", "val.txt", "test_1.txt")]
)
def test_files_belong_to_the_split_of_their_folder_or_name(tmp_path, out, names):
    raw = write(
        tmp_path / "raw",
        dict(zip(names, "abc", strict=True)) | {"other/d.txt": "d", "notes.md": "e"},
    )
    convert(raw, out)
    assert [decoded(out, split) for split in ("train", "validation", "test")] == [
        ["a"],
        ["b"],
        ["c"],
    ]


def test_ignored_files_are_noted(tmp_path, out, capsys):
    raw = write(
        tmp_path / "raw", {"train/a.TXT": "a", "other/d.txt": "d", "notes.md": "e", ".hidden": "f"}
    )
    convert(raw, out)
    assert decoded(out, "train") == ["a"]
    assert "note: 2 files not read: notes.md, " in capsys.readouterr().out


def test_blocks_of_a_file_are_documents(tmp_path, out):
    raw = write(tmp_path / "raw", {"a.txt": "one\ntwo\n\n\nthree\n"})
    convert(
        raw,
        out,
        "--documents=block",
        "--validation-fraction=0",
        "--sequence-length=10",
    )
    assert decoded(out, "train") == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("name", "unit", "sources"),
    [("a.jsonl", "file", 5), ("a.txt", "block", 5), ("a.txt", "file", 1)],
)
def test_only_files_whose_documents_can_be_found_anywhere_are_cut_into_slices(
    tmp_path, monkeypatch, name, unit, sources
):
    monkeypatch.setattr(layouts, "SLICE_BYTES", 100)
    row = {"a.jsonl": json.dumps({"text": "x" * 20}) + "\n"}.get(name, "x" * 30 + "\n\n")
    raw = write(tmp_path / "raw", {name: row * (450 // len(row))})
    reading = DocumentFormat(unit)
    assert len(find_texts(str(raw), [], HeldOut(0.0), reading).sources) == sources
    (raw / f"{name}.gz").write_bytes(gzip.compress(Path(raw / name).read_bytes(), 0))
    (raw / name).unlink()
    assert len(find_texts(str(raw), [], HeldOut(0.0), reading).sources) == 1


def test_slices_change_neither_documents_nor_totals(tmp_path, monkeypatch):
    raw = RawTexts(tmp_path / "raw", 60).write()
    flags = ("--validation-fraction=0.3", "--sequence-length=64", "--max-bad-records=9")
    raw.convert(tmp_path / "whole", *flags)
    monkeypatch.setattr(layouts, "SLICE_BYTES", 700)
    raw.convert(tmp_path / "sliced", *flags)
    whole, sliced = (read_manifest(str(tmp_path / name)).splits for name in ("whole", "sliced"))
    for split in ("train", "validation"):
        assert sliced[split].sources["inputs"] > whole[split].sources["inputs"]
        for name in ("num_bytes", "num_documents"):
            assert sliced[split].totals[name] == whole[split].totals[name]


def test_a_long_document_that_is_held_out_is_told_to_be_more_than_was_asked_for(tmp_path, out):
    held_out = {"b.txt": "24 " * 400}  # by its hash
    raw = write(tmp_path / "raw", {f"{n}.txt": f"{n} " * 100 for n in range(9)} | held_out)
    convert(raw, out, "--validation-fraction=0.1", "--sequence-length=32")
    splits = read_manifest(str(out)).splits
    records = {name: split.num_records for name, split in splits.items()}
    summary = json.loads((out / "_summary/validation.json").read_text())
    share = f"{records['validation']} of {sum(records.values())} records"
    assert any(share in each and "10.0% was asked for" in each for each in summary["warnings"])
    assert "--split-by" not in str(summary["warnings"])  # texts have no such option


def test_a_hugging_face_tokenizer_is_copied_beside_the_shards(tmp_path, out):
    made = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "?": 2, "hello": 3, "world": 4}, "?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "words.json"))
    raw = write(tmp_path / "raw", {"a.txt": "hello world", "b.txt": "world ! "})
    flags = (
        "--validation-fraction=0",
        f"--tokenizer={tmp_path / 'words.json'}",
        "--sequence-length=9",
    )
    convert(raw, out, *flags)
    assert (out / "tokenizer.json").read_bytes() == (tmp_path / "words.json").read_bytes()
    (row,) = open_dataset(str(out), "train").examples()
    assert row["tokens"].tolist() == [0, 3, 4, 1, 0, 4, 2, 1, 0]
    assert row["segment_ids"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 0]
    assert row["num_bytes"] == len("hello world") + len("world ! ")


def test_an_alphabet_is_the_characters_of_a_file(tmp_path, out):
    raw = write(tmp_path / "raw", {"a.txt": "abba"})
    (tmp_path / "alphabet.txt").write_text("bab\n")
    convert(
        raw,
        out,
        "--tokenizer=characters",
        f"--alphabet={tmp_path}/alphabet.txt",
        "--validation-fraction=0",
    )
    assert read_text_info(str(out)).tokenizer.settings() == {
        "name": "characters",
        "alphabet": "ba\n",
    }
    assert decoded(out, "train") == ["abba"]


@pytest.mark.parametrize(
    ("flags", "error", "message"),
    [
        (["--sequence-length=1"], OptionError, "--sequence-length=1: must be at least 2 and at most"),
        (["--delimiter=ab"], OptionError, "--delimiter='ab': it must be one character other than a quote, or tab."),
        (["--validation-fraction=1"], OptionError, "--validation-fraction=1.0: must be at least 0 and below 1."),
        ([], RawDataError, r"has no files of a split, such as train/a\.txt .* It has: a\.txt, t\.csv\. .* give"),
        (["--validation-fraction=0", "--text-column=tex"], OptionError, r"t\.csv has no column 'tex'.*Did you mean"),
        (["--validation-fraction=0", "--tokenizer=byte"], OptionError, r"--tokenizer=byte: .* Did you mean 'bytes'\?"),
        (["--validation-fraction=0", "--alphabet=x"], OptionError, "--alphabet=x: only --tokenizer=characters has one"),
        (["--validation-fraction=0", "--start-token=x"], OptionError, "--start-token=x: only a tokenizer.json has one"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_clear_error(tmp_path, out, flags, error, message):
    raw = write(tmp_path / "raw", {"a.txt": "a", "t.csv": "text\nb\n"})
    with pytest.raises(error, match=message):
        convert(raw, out, *flags)
    assert not out.exists()


def test_a_directory_without_text_is_an_error(tmp_path, out):
    raw = write(tmp_path / "raw", {"a.md": "a"})
    with pytest.raises(
        RawDataError, match=r"has no text: no file ends in \.txt, \.csv, .* It has: a\.md\."
    ):
        convert(raw, out, "--validation-fraction=0")


def test_describe_shows_documents_tokens_and_the_text_of_rows(tmp_path, out, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    raw = write(tmp_path / "raw", {"a.txt": "hello", "b.txt": "wörld [bold]"})
    convert(raw, out, "--validation-fraction=0", "--sequence-length=32")
    capsys.readouterr()
    describe.main([str(out)])
    said = [
        " ".join(line.replace("│", " ").split()) for line in capsys.readouterr().out.splitlines()
    ]
    assert "Text: tokenizer bytes, rows of 32 tokens, packing documents" in said
    assert "train 2 18 20 0.900 20.0 68.75%" in said  # bytes per token counts the ends of documents
    assert "(text) hello ┊ wörld [bold]" in said


def test_verify_finds_a_total_that_the_records_do_not_have(tmp_path, out, capsys):
    raw = write(tmp_path / "raw", {"a.txt": "hello"})
    convert(raw, out, "--validation-fraction=0")
    assert verify.main([str(out)]) == 0
    fields = json.loads((out / "manifest.json").read_text())
    fields["splits"]["train"]["totals"]["num_bytes"] += 1
    del fields["checksum"]
    (out / "manifest.json").write_text(json.dumps(fields))
    capsys.readouterr()
    assert verify.main([str(out)]) == 1
    assert "total num_bytes of 'train' is 6, its records have 5" in capsys.readouterr().out


def test_verify_finds_a_damaged_text_json_and_describe_shows_the_rest(tmp_path, out, capsys):
    raw = write(tmp_path / "raw", {"a.txt": "hello"})
    convert(raw, out, "--validation-fraction=0")
    (out / "text.json").write_text("{}")
    assert verify.main([str(out)]) == 1
    assert "text.json: it has no checksum." in capsys.readouterr().out
    describe.main([str(out)])
    said = capsys.readouterr()
    assert "warning: " in said.err
    assert "positions" in said.out


def test_a_split_without_documents_says_what_to_do(tmp_path, out):
    raw = write(tmp_path / "raw", {"a.txt": "hello"})
    with pytest.raises(
        ConversionError, match=r"'validation' has no records: .* Give another --validation-fraction"
    ):
        convert(raw, out, "--validation-fraction=0.0001")
    write(tmp_path / "empty", {"a.txt": ""})
    with pytest.raises(ConversionError, match=r"'train' has no records: its 1 inputs were all"):
        convert(
            tmp_path / "empty", tmp_path / "none", "--validation-fraction=0", "--max-bad-records=1"
        )


def test_a_link_to_a_directory_above_is_not_followed_and_an_empty_table_has_no_documents(
    tmp_path, out
):
    raw = write(tmp_path / "raw", {"a/b.txt": "hello", "a/new\nline.txt": "there", "c.csv": ""})
    (raw / "a/loop").symlink_to(raw)
    convert(raw, out, "--validation-fraction=0")
    assert open_dataset(str(out), "train").info.totals["num_documents"] == 2


@pytest.mark.slow
def test_a_directory_found_by_over_100_paths_is_one_error_that_names_the_links(tmp_path, out):
    """Both links in each of 27 directories lead to the next: 2 ** 27 paths to the last."""
    raw = write(
        tmp_path / "raw",
        {"d00/a.txt": "hello", **{f"d{n:02}/b.txt": "there" for n in range(1, 28)}},
    )
    for n in range(27):
        for link in ("left", "right"):
            (raw / f"d{n:02}" / link).symlink_to(raw / f"d{n + 1:02}")
    message = r"raw/d27 is found by more than 100 paths, through symbolic links such as \S+raw/d00/left, \S+left/left, "
    with pytest.raises(RawDataError, match=message):
        convert(raw, out, "--validation-fraction=0")


def test_a_directory_is_read_once_per_symbolic_link_to_it(tmp_path, out):
    raw = write(tmp_path / "raw", {"a/b.txt": "hello"})
    for n in range(3):
        (raw / f"link{n}").symlink_to(raw / "a")
    convert(raw, out, "--validation-fraction=0")
    assert open_dataset(str(out), "train").info.totals["num_documents"] == 4


def test_a_source_of_2000_small_files_pickles_to_60_kb(tmp_path):
    raw = write(tmp_path / "raw", {f"train/{n}.txt": "hello" for n in range(2000)})
    sources = find_texts(str(raw), [], None, DocumentFormat()).sources
    assert len(pickle.dumps(sources)) < 60_000
    assert len(files_of(sources[0])) == 2000
