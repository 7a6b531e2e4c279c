"""What a conversion says of itself: the JSON summary, warnings, the live bar on a terminal."""

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import threading
from dataclasses import replace

import fork_server as forks
import pytest
from beam_jobs.counts import Counts, counts_of, read_counts
from rich.progress import Progress

from beam_jobs import launch as progress_bars
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.converter import Source
from beam_jobs.launch import _Bar, _update
from beam_jobs.receipts import Receipt
from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.shards.typed_json import sealed_line
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat
from pipeline.tools.command import Console


def read_summary(out, split="train"):
    return json.loads((out / f"_summary/{split}.json").read_text())


def test_the_summary_says_what_is_in_the_manifest_and_how_fast_it_came(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--target-shard-bytes=2KB")
    entry = read_manifest(str(tmp_path / "out")).split("train")
    summary = read_summary(tmp_path / "out")
    sizes = [shard.bytes for shard in entry.shards]
    assert (summary["records"], summary["bytes"], summary["shards"]) == (18, sum(sizes), len(sizes))
    assert (summary["smallest_shard"], summary["largest_shard"]) == (min(sizes), max(sizes))
    assert (summary["plan_digest"], summary["target_shard"]) == (entry.plan_digest, 2000)
    assert summary["records_per_second"] == pytest.approx(18 / summary["seconds"], abs=1e-3)
    assert read_summary(tmp_path / "out", "validation")["records"] == 4


@pytest.mark.usefixtures("without_beam")
def test_a_second_run_counts_what_the_first_had_finished(raw_imagenet, tmp_path, capsys):
    raw_imagenet.convert(tmp_path / "out", "--num-train-shards=4", "--splits=train")
    entry = read_manifest(str(tmp_path / "out")).split("train")
    (tmp_path / "out" / entry.shards[1].file).unlink()
    capsys.readouterr()
    raw_imagenet.convert(tmp_path / "out", "--num-train-shards=4", "--splits=train")
    summary = read_summary(tmp_path / "out")
    assert summary["shards_finished_before"] == 3
    assert summary["records_per_second"] == pytest.approx(entry.shards[1].records / summary["seconds"], abs=1e-3)
    assert "in 4 shards (3 of them finished before)" in capsys.readouterr().out
    raw_imagenet.convert(tmp_path / "out", "--num-train-shards=4", "--splits=train", "--verify-existing")
    assert "in 4 shards, all finished before" in capsys.readouterr().out


@pytest.mark.usefixtures("without_beam")
def test_a_record_of_a_quarter_of_a_shard_is_named(raw_imagenet, tmp_path, capsys, make_large):
    key = "train/n00000002/n00000002_1.JPEG"
    raw_imagenet.train["n00000002"]["n00000002_1.JPEG"] = make_large
    raw_imagenet.write()
    raw_imagenet.convert(tmp_path / "a", "--target-shard-bytes=20KB", "--splits=train")
    assert f"warning: {key} is a record of" in capsys.readouterr().out
    assert read_summary(tmp_path / "a")["largest_record"]["key"] == key
    assert len(read_summary(tmp_path / "a")["warnings"]) == 1
    raw_imagenet.convert(tmp_path / "b", "--splits=train")  # one shard: there is nothing to be alike
    assert "warning" not in capsys.readouterr().out


@pytest.fixture
def make_large(raw_imagenet):
    """A JPEG of 30 KB: bytes behind the end mark are allowed."""
    return next(iter(raw_imagenet.train["n00000002"].values())).ljust(30_000, b"\0")


@pytest.mark.usefixtures("without_beam")
def test_a_failed_overwrite_leaves_no_summary_of_the_removed_split(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--splits=train")
    assert read_summary(tmp_path / "out")["records"] == 18
    raw_imagenet.train["n00000001"]["n00000001_0.JPEG"] = b"no image"
    raw_imagenet.write()
    with pytest.raises(ConversionError, match="1 bad record;"):
        raw_imagenet.convert(tmp_path / "out", "--splits=train", "--overwrite")
    assert not (tmp_path / "out/_summary/train.json").exists()


def test_the_bar_restarts_when_the_claim_is_replaced_and_tolerates_a_damaged_one(tmp_path):
    job = bar_job(tmp_path)
    with Progress() as progress:
        bar = _Bar(job, "train", progress)
        for plan, shards in (("old", 2), ("new", 7)):
            write_claim(tmp_path, plan=plan, num_shards=shards)
            receipt = receipt_file("train", 0, shards)
            bar.refresh(LocalStorage(), {plan_file("train"), receipt})
            assert (progress.tasks[0].total, progress.tasks[0].completed) == (shards, 1)
    (tmp_path / plan_file("train")).write_text("{")
    _update(job, [bar])


def bar_job(directory, sources="a", splits=("train",)):
    found = tuple(Source(split, name, Stat(0)) for split in splits for name in sources)
    return ConversionJob(None, found, str(directory))


def write_claim(directory, split="train", **fields):
    claim = {"plan": "p", "num_shards": 2, "records": 20, "bytes": 2000, "seed": 0} | fields
    (directory / "_shards").mkdir(exist_ok=True)
    (directory / plan_file(split)).write_bytes(sealed_line(claim))


def write_receipt(directory, shard, **fields):
    """Of two shards; a receipt with 10 records."""
    receipt = Receipt("p", "train", shard, 2, 10, 1200, 0, "", "", "", {}, (), {}, {}, {}, "", None)
    replace(receipt, **fields).write(LocalStorage(), str(directory))


BAD_CLAIMS = [{"num_shards": 0}, {"more": 1}]


@pytest.mark.parametrize("wrong", BAD_CLAIMS, ids=str)
def test_a_damaged_claim_stops_the_bar_of_its_split_only(tmp_path, wrong):
    job = bar_job(tmp_path, splits=("train", "validation"))
    write_claim(tmp_path, "train", **wrong)
    write_claim(tmp_path, "validation")
    with Progress() as progress:
        bars = [_Bar(job, split, progress) for split in job.splits]
        _update(job, bars)
        assert [task.description for task in progress.tasks] == ["train: scanning", "validation: shards"]
        write_claim(tmp_path, "train")
        _update(job, bars)
        assert progress.tasks[0].description == "train: shards"


def test_the_bar_does_not_count_a_damaged_receipt(tmp_path):
    job = bar_job(tmp_path)
    write_claim(tmp_path)
    with Progress() as progress:
        bar, task = _Bar(job, "train", progress), progress.tasks[0]
        _update(job, [bar])
        write_receipt(tmp_path, 1)
        path = tmp_path / receipt_file("train", 0, 2)
        for damaged in ("{", "[]", '{"records": "10", "bytes": 1200}'):
            path.write_text(damaged)
            _update(job, [bar])
            assert task.completed == 1
        write_receipt(tmp_path, 0)
        _update(job, [bar])
        assert task.completed == 2


def test_damaged_progress_counts_are_ignored(tmp_path):
    for name, text in {"1": '{"train": {"records": 3}}', "2": "{"}.items():
        (tmp_path / f"{name}.json").write_text(text)
    assert read_counts(str(tmp_path)) == {"train": Counts(records=3)}


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("error", [None, ConversionError, KeyboardInterrupt])
def test_no_thread_that_looks_for_receipts_outlives_a_conversion_unless_ctrl_c_cannot_wait(
    tmp_path, monkeypatch, error
):
    looking, answer, before = threading.Event(), threading.Event(), set(threading.enumerate())

    def hanging(*_):  # as a bucket that cannot be reached
        looking.set()
        answer.wait(30)
        return {}

    monkeypatch.setattr(LocalStorage, "list", hanging)
    monkeypatch.setattr(progress_bars, "_POLL_SECONDS", 0.0)
    ended = pytest.raises(error) if error else contextlib.nullcontext()
    console = Console(file=Terminal(), force_terminal=True)
    with ended, progress_bars.progress_bars(bar_job(tmp_path), console):
        assert looking.wait(30)
        [polling] = [thread for thread in threading.enumerate() if thread not in before and "_poll" in thread.name]
        if error is not KeyboardInterrupt:
            threading.Timer(0.2, answer.set).start()
        if error:
            raise error("over")
    assert polling.is_alive() == (error is KeyboardInterrupt)
    answer.set()


def test_the_bar_moves_with_what_workers_count_in_a_scan_and_within_a_shard(tmp_path):
    storage, job = LocalStorage(), bar_job(tmp_path, "abcd")
    receipts = [receipt_file("train", shard, 2) for shard in range(2)]
    write_claim(tmp_path)
    write_receipt(tmp_path, 0)
    with Progress() as progress:
        bar, task = _Bar(job, "train", progress), progress.tasks[0]
        bar.update(storage, set(), Counts(sources=1, scanned=12_345))
        assert (task.total, task.completed, task.fields["rate"]) == (4, 1, "12,345 records found")
        claimed = {plan_file("train")}
        bar.update(storage, claimed, Counts(sources=3, scanned=20_000))  # by an earlier run
        assert (task.description, task.completed) == ("train: scanning", 3)
        scanned = Counts(sources=4, scanned=20_000)
        shown = []
        for names, counts in [
            (claimed, Counts()),  # of workers elsewhere, which are not counted
            (claimed, scanned),
            (claimed, scanned | Counts(records=2, bytes=250)),
            (claimed, scanned | Counts(records=9, bytes=5000)),
            ({*claimed, receipts[0]}, scanned | Counts(records=9, bytes=1100)),
            ({*claimed, receipts[0]}, scanned | Counts(records=15, bytes=1800)),
            ({*claimed, *receipts[:1]}, Counts()),
        ]:
            bar.update(storage, names, counts)
            shown.append(progress.tasks[0].completed)
        assert shown == [0, 0, 0.25, 1.98, 1, 1.5, 1]
        assert progress.tasks[0].description == "train: shards"


def test_local_workers_add_up_their_counts_and_remote_workers_write_none(tmp_path, monkeypatch):
    first, nowhere = counts_of(str(tmp_path)), counts_of(str(tmp_path / "elsewhere"))
    for counts in (first, nowhere, counts_of("")):
        counts.add("train", scanned=5)
        counts.add("train", scanned=2)  # too soon after the other: written with the next
        assert read_counts(str(tmp_path)) == {"train": Counts(scanned=5)}
    first.add("train", sources=1)
    monkeypatch.setattr(os, "getpid", lambda: 1)
    counts_of.cache_clear()
    counts_of(str(tmp_path)).add("train", records=3, bytes=300)
    assert read_counts(str(tmp_path)) == {"train": Counts(sources=1, scanned=7, records=3, bytes=300)}
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.slow
def test_on_a_terminal_a_bar_shows_shards_and_speed(digits, tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, forks.__file__, os.environ["FORK_SERVER"], "-u"]
    command += ["-m", "converters.imagenet_to_gcs", f"--raw-data-dir={digits[0]}"]
    command += [f"--label-file={digits[0]}/synsets.txt", f"--gcs-output-path={tmp_path}/out"]
    command += ["--target-shard-bytes=100KB", "--splits=train"]
    environment = os.environ | {"TERM": "xterm", "COLUMNS": "160"}
    done = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    while piece := _read(ours):
        shown += piece
    os.close(ours)
    assert done.wait(timeout=60) == 0, shown
    shards = read_summary(tmp_path / "out")["shards"]
    # On one line, for the report at the end has records/s, too.
    assert re.search(rf"train: shards[^\r\n]*{shards}/{shards}[^\r\n]*[0-9] records/s, ".encode(), shown), shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
