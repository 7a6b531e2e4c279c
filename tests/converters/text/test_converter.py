"""Rows of tokens from documents: their content, the totals in the manifest, and what a killed conversion leaves."""

import itertools
import json
import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raw_data.texts import RawTexts
from sweep import SWEEP, examples

from converters.text import converter as module
from converters.text import documents as layouts
from converters.text.converter import TextConverter
from converters.text.documents import DocumentFormat, find_texts
from pipeline.errors import ConversionError, RawDataError
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import read_manifest
from pipeline.sources.open_dataset import open_dataset
from pipeline.storage.local import LocalStorage
from pipeline.tokenizers import ByteTokenizer, CharacterTokenizer, TextInfo, read_text_info

SCRIPT = str(Path(__file__).parents[2] / "making/killed_text.py")
TEXTS = st.lists(st.text("aé日🎉 \n", min_size=1, max_size=40), min_size=1, max_size=20)
TOKENIZERS = st.sampled_from(
    [ByteTokenizer(), CharacterTokenizer("a\n é"), CharacterTokenizer("aé日🎉 \n")]
)


def packs_of(directory, texts, info, window_bytes):
    (directory / "train.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    (source,) = find_texts(str(directory), [], None, DocumentFormat()).sources
    converter = TextConverter(info)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_WINDOW_BYTES", window_bytes)
        windows = list(converter.windows(LocalStorage(), source))
    return [converter.pack(source, number, window) for number, window in enumerate(windows)]


def segments(row):
    """The tokens of each segment, after checking the arrays against each other."""
    tokens, numbers, positions = (
        np.array(row[key]) for key in ("tokens", "segment_ids", "positions")
    )
    assert len(tokens) == len(numbers) == len(positions)
    found = []
    for number in range(1, numbers.max() + 1):
        (places,) = np.nonzero(numbers == number)
        assert (np.diff(places) == 1).all()
        assert positions[places].tolist() == list(range(len(places)))
        found.append(tokens[places].tolist())
    padding = numbers == 0
    assert not padding[: len(padding) - padding.sum()].any()  # only at the end
    assert not tokens[padding].any()
    assert not positions[padding].any()
    return found


def payloads(packs):
    for pack in packs:
        cuts = [0, *np.cumsum(pack.sizes).tolist()]
        yield from (pack.data[begin:end] for begin, end in itertools.pairwise(cuts))


@given(
    TEXTS,
    TOKENIZERS,
    st.integers(2, 40),
    st.sampled_from(["documents", "concat"]),
    st.integers(1, 200),
)
@settings(max_examples=examples(150), deadline=None)
def test_every_byte_of_every_document_comes_once(
    tmp_path_factory, texts, tokenizer, length, packing, window_bytes
):
    directory = tmp_path_factory.mktemp("texts")
    packs = packs_of(directory, texts, TextInfo(tokenizer, length, packing), window_bytes)
    rows = [decode_example(payload) for payload in payloads(packs)]
    found = [segment for row in rows for segment in segments(row)]
    assert all(segment[0] == tokenizer.start and len(segment) > 1 for segment in found)
    expected = Counter(
        token for tokens in tokenizer.encode_batch(texts) for token in tokens.tolist()
    )
    assert (
        Counter(token for segment in found for token in segment[1:] if token != tokenizer.end)
        == expected
    )
    assert sum(segment.count(tokenizer.end) for segment in found) == len(texts)
    if packing == "documents":  # complete documents are single segments
        whole = [
            [tokenizer.start, *tokens.tolist(), tokenizer.end]
            for tokens in tokenizer.encode_batch(texts)
        ]
        assert not Counter(map(tuple, (w for w in whole if len(w) <= length))) - Counter(
            map(tuple, found)
        )
    totals = {
        name: sum(int(pack.columns[name].sum()) for pack in packs) for name in packs[0].columns
    }
    assert (
        totals["num_bytes"]
        == sum(len(text.encode()) for text in texts)
        == sum(row["num_bytes"][0] for row in rows)
    )
    assert totals["num_documents"] == len(texts)
    assert totals["num_segments"] == len(found)
    assert totals["num_tokens"] == sum(map(len, found)) - len(found)
    for row in rows:  # each row states the bytes of its own text
        if isinstance(tokenizer, ByteTokenizer):
            assert row["num_bytes"][0] == sum(token >= 3 for token in row["tokens"])
        elif tokenizer.unknown not in row["tokens"]:
            assert row["num_bytes"][0] == len(tokenizer.decode(row["tokens"]).encode())
    shutil.rmtree(directory)


@given(TEXTS, st.integers(2, 30), st.integers(1, 100))
@settings(max_examples=examples(60), deadline=None)
def test_concatenated_rows_are_the_documents_in_order(
    tmp_path_factory, texts, length, window_bytes
):
    packs = packs_of(
        tmp_path_factory.mktemp("texts"),
        texts,
        TextInfo(ByteTokenizer(), length, "concat"),
        window_bytes,
    )
    found = [s for payload in payloads(packs) for s in segments(decode_example(payload))]
    stream = [token for segment in found for token in segment[1:]]
    assert stream == [
        token for text in ByteTokenizer().encode_batch(texts) for token in (*text.tolist(), 1)
    ]


@pytest.mark.usefixtures("without_beam")
class TestConversions:
    FLAGS = ("--validation-fraction=0.3", "--sequence-length=32", "--max-bad-records=20")

    def test_the_manifest_states_totals_and_a_sidecar_the_tokenizer(self, tmp_path, capsys):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS, "--tokenizer=characters")
        assert (
            "some text is unknown to the tokenizer and became its unknown token."
            in capsys.readouterr().out
        )
        splits = read_manifest(str(tmp_path / "out")).splits
        totals = [open_dataset(str(tmp_path / "out"), split).info.totals for split in splits]
        assert totals == [entry.totals for entry in splits.values()]
        assert sum(each["num_documents"] for each in totals) == len(raw.texts)
        assert sum(each["num_bytes"] for each in totals) == sum(
            len(text.encode()) for text in raw.texts
        )
        assert read_text_info(str(tmp_path / "out")) == TextInfo(
            CharacterTokenizer(), 32, "documents", (0.3, 0.0)
        )
        assert not list((tmp_path / "out/_scratch").iterdir())

    def test_a_dry_run_writes_nothing_and_foresees_the_same_plan(self, tmp_path, capsys):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS, "--dry-run")
        said = capsys.readouterr().out
        assert not (tmp_path / "out").exists()
        raw.convert(tmp_path / "out", *self.FLAGS)
        splits = read_manifest(str(tmp_path / "out")).splits
        assert [entry.plan_digest in said for entry in splits.values()] == [True, True]

    def test_copies_of_a_document_are_in_one_split(self, tmp_path):
        raw = RawTexts(tmp_path / "raw")
        raw.files = {
            f"{i}/{n}.txt": text.encode() for i in range(3) for n, text in enumerate(raw.texts)
        }
        raw.write().convert(tmp_path / "out", *self.FLAGS)
        for entry in read_manifest(str(tmp_path / "out")).splits.values():
            assert entry.totals["num_documents"] % 3 == 0

    def test_unusable_documents_are_in_the_ledger_once_with_file_and_place(self, tmp_path):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS)
        texts = (path.read_text() for path in (tmp_path / "out/_rejects").iterdir())
        ledger = [json.loads(line) for text in texts for line in text.splitlines()]
        assert sorted(
            (Path(line["uri"]).name, line["error"].partition(" at")[0]) for line in ledger
        ) == [
            ("bad.txt", "not UTF-8: byte 0xff"),
            ("empty.txt", "an empty document"),
            ("rows.csv", "3 cells; the header has 2"),
            ("rows.jsonl.gz", "'text' is '\\ud800', which is not Unicode text"),
            ("rows.jsonl.gz", "'text' is 7; it must be text"),
            ("rows.jsonl.gz", "no 'text' in it"),
            ("rows.jsonl.gz", "not JSON: Expecting property name enclosed in double quotes"),
        ]
        assert all(line["key"].split(":")[-1] == str(line["offset"]) for line in ledger)

    def test_raw_data_that_changes_while_it_is_packed_is_an_error(self, tmp_path, monkeypatch):
        raw = RawTexts(tmp_path / "raw").write()
        pack = TextConverter.pack

        def change(self, source, number, window):
            (tmp_path / "raw/rows.csv").write_text("text,n\nother,1\n")
            return pack(self, source, number, window)

        monkeypatch.setattr(TextConverter, "pack", change)
        with pytest.raises(
            ConversionError,
            match=r"rows\.csv has 15 bytes; it had \d+ bytes when the command started",
        ):
            raw.convert(tmp_path / "out", *self.FLAGS)
        assert not (tmp_path / "out/manifest.json").exists()

    def test_a_file_that_shrinks_before_it_is_read_is_an_error(self, tmp_path, monkeypatch):
        raw = RawTexts(tmp_path / "raw")
        windows, path = TextConverter.windows, tmp_path / "raw/rows.jsonl"

        def shrink(self, storage, source):
            path.write_text("")
            return windows(self, storage, source)

        monkeypatch.setattr(TextConverter, "windows", shrink)
        for flag in ((), ("--dry-run",)):
            raw.files = {"rows.jsonl": b'{"text": "a"}\n' * 9}
            raw.write()
            with pytest.raises(
                (ConversionError, RawDataError), match=r"has 0 bytes; it had \d+ bytes"
            ):
                raw.convert(tmp_path / "out", *self.FLAGS, *flag)

    def test_other_options_are_not_taken_for_changed_raw_data(self, tmp_path):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS)
        with pytest.raises(ConversionError, match="this one is") as error:
            raw.convert(tmp_path / "out", *self.FLAGS, "--sequence-length=16")
        assert "has changed" not in str(error.value)
        assert not list((tmp_path / "out/_scratch").iterdir())  # what was packed in vain

    def test_a_split_that_is_added_is_packed_like_the_others(self, tmp_path):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS, "--splits=train")
        options = r"train of \S+ was converted with other options: \S+text\.json"
        for option, message in {
            "--packing=concat": options,
            "--validation-fraction=0.5": options,
            "--tokenizer=characters": "its features or labels are not those of 'text'",
        }.items():
            with pytest.raises(ConversionError, match=message):
                raw.convert(tmp_path / "out", *self.FLAGS, "--splits=validation", option)

    def test_a_dry_run_packs_few_windows_at_once(self, tmp_path, monkeypatch):
        raw = RawTexts(tmp_path / "raw").write()
        monkeypatch.setattr(layouts, "SLICE_BYTES", 100)
        running, most, pack = [], [], TextConverter.pack

        def counted(self, *given):
            running.append(1)
            most.append(len(running))
            try:
                return pack(self, *given)
            finally:
                running.pop()

        monkeypatch.setattr(TextConverter, "pack", counted)
        raw.convert(tmp_path / "out", *self.FLAGS, "--dry-run")
        assert len(most) > 8
        assert max(most) <= os.cpu_count()

    def test_a_changed_document_is_named_when_the_command_is_repeated(self, tmp_path):
        raw = RawTexts(tmp_path / "raw").write()
        raw.convert(tmp_path / "out", *self.FLAGS)
        raw.convert(tmp_path / "out", *self.FLAGS)
        (tmp_path / "raw/a/1.txt").write_text("another text")
        with pytest.raises(
            ConversionError, match=r"one of 12 files starting with \S+rows\.csv has changed"
        ):
            raw.convert(tmp_path / "out", *self.FLAGS)

    def test_a_packed_file_is_used_again_unless_it_is_damaged(self, tmp_path, monkeypatch):
        raw, packed = RawTexts(tmp_path / "raw").write(), []
        monkeypatch.setattr("beam_jobs.stages.check_scanned", lambda *_: 1 / 0)
        with pytest.raises(RuntimeError):
            raw.convert(tmp_path / "out", *self.FLAGS)
        monkeypatch.undo()
        left = sorted((tmp_path / "out/_scratch").iterdir())
        assert [path.name.partition(".")[0] for path in left] == ["train", "validation"]
        table = left[0].read_bytes()
        left[0].write_bytes(table[:-30] + bytes(22) + table[-8:])
        self.go_on(raw, tmp_path, packed, monkeypatch)
        assert packed == ["train"]

    def test_a_damaged_row_of_a_packed_file_never_reaches_a_shard(self, tmp_path, monkeypatch):
        raw = RawTexts(tmp_path / "raw").write()
        monkeypatch.setattr("beam_jobs.stages.check_scanned", lambda *_: 1 / 0)
        with pytest.raises(RuntimeError):
            raw.convert(tmp_path / "out", *self.FLAGS)
        monkeypatch.undo()
        (path,) = (tmp_path / "out/_scratch").glob("train*")
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(data)
        with pytest.raises(
            ConversionError, match=r"_scratch/train\S+ is damaged at byte 0\. Remove it"
        ):
            self.go_on(raw, tmp_path, [], monkeypatch)
        assert not (tmp_path / "out/manifest.json").exists()

    def go_on(self, raw, tmp_path, packed, monkeypatch):
        pack = TextConverter.pack
        monkeypatch.setattr(
            TextConverter,
            "pack",
            lambda c, s, *rest: (packed.append(s.split), pack(c, s, *rest))[1],
        )
        try:
            raw.convert(tmp_path / "out", *self.FLAGS)
        finally:
            monkeypatch.setattr(TextConverter, "pack", pack)


KILLS = range(1, 16) if SWEEP else (7,)


@pytest.mark.slow
def test_a_killed_conversion_ends_with_the_same_bytes(tmp_path, run_forked, shard_digests):
    raw = RawTexts(tmp_path / "raw", 60).write()
    flags = [f"--raw-data-dir={raw.directory}", *TestConversions.FLAGS, "--target-shard-bytes=20KB"]
    status, output = run_forked(
        [SCRIPT, "0", *flags, f"--output={tmp_path / 'whole'}"], timeout=120
    )
    assert status == 0, output
    expected = shard_digests(tmp_path / "whole")
    assert len(expected) == 7
    # what differs from other converters is what one process does
    for workers in (2, 4) if SWEEP else ():
        more = [f"--output={tmp_path / str(workers)}", f"--local-processes={workers}"]
        assert run_forked([SCRIPT, "0", *flags, *more], timeout=120)[0] == 0
        assert shard_digests(tmp_path / str(workers)) == expected
    for number in KILLS:
        out = tmp_path / f"killed-{number}"
        assert run_forked([SCRIPT, str(number), *flags, f"--output={out}"], timeout=120)[0] == -9
        status, output = run_forked([SCRIPT, "0", *flags, f"--output={out}"], timeout=120)
        assert status == 0, output
        assert shard_digests(out) == expected
        assert not list((out / "_scratch").iterdir())
