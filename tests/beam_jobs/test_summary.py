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
import time
from dataclasses import asdict, replace

import fork_server as forks
import pytest
from rich.progress import Progress

from beam_jobs import progress as progress_bars
from beam_jobs.converter import ConversionJob, Source
from beam_jobs.progress import _Bar, _update
from beam_jobs.split.claims import Claim
from beam_jobs.split.ledger import Receipt
from pipeline.console.console import Console
from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.naming import plan_file, receipt_file
from pipeline.shards.schema import SHARD_FILES
from pipeline.shards.typed_json import sealed_line
from pipeline.storage.local import LocalStorage
from pipeline.storage.storage import Stat


def read_summary(out, split="train"):
    return json.loads((out / f"_summary/{split}.json").read_text())


def test_the_summary_says_what_is_in_the_manifest_and_how_fast_it_came(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--target-shard-bytes=2KB")
    entry = read_manifest(str(tmp_path / "out")).split("train")
    summary = read_summary(tmp_path / "out")
    sizes = [shard.bytes for shard in entry.shards]
    assert (summary["records"], summary["bytes"], summary["shards"]) == (18, sum(sizes), len(sizes))
    assert summary["plan_digest"] == entry.plan_digest
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
    assert summary["records_per_second"] == pytest.approx(
        entry.shards[1].records / summary["seconds"], abs=1e-3
    )
    assert "in 4 shards (3 of them finished before)" in capsys.readouterr().out


@pytest.mark.usefixtures("without_beam")
def test_shards_that_were_verified_and_found_intact_count_as_finished_before(
    raw_imagenet, tmp_path, capsys
):
    for flags in ([], ["--verify-existing"]):
        raw_imagenet.convert(tmp_path / "out", "--splits=train", *flags)
    assert "in 1 shard, all finished before" in capsys.readouterr().out


@pytest.mark.usefixtures("without_beam")
def test_a_failed_overwrite_leaves_no_summary_of_the_removed_split(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--splits=train")
    assert read_summary(tmp_path / "out")["records"] == 18
    raw_imagenet.train["n00000001"]["n00000001_0.JPEG"] = b"no image"
    raw_imagenet.write()
    with pytest.raises(ConversionError, match="1 bad record;"):
        raw_imagenet.convert(tmp_path / "out", "--splits=train", "--overwrite")
    assert not (tmp_path / "out/_summary/train.json").exists()


@pytest.mark.usefixtures("without_beam")
def test_overwriting_a_tfds_conversion_removes_all_of_its_old_shards(raw_imagenet, tmp_path):
    flags = ("--schema=tfds", "--splits=train", "--overwrite")
    raw_imagenet.convert(tmp_path, *flags, "--num-train-shards=4")
    raw_imagenet.convert(tmp_path, *flags, "--num-train-shards=2")
    names = sorted(path.name for path in (tmp_path / "imagenet2012/5.1.0").glob("imagenet2012-*"))
    assert names == [f"imagenet2012-train.tfrecord-0000{shard}-of-00002" for shard in range(2)]


def test_the_bar_restarts_when_the_claim_is_replaced(tmp_path):
    job = bar_job(tmp_path)
    with Progress() as progress:
        bar = _Bar(job, "train", progress)
        for plan, shards in (("old", 2), ("new", 7)):
            write_claim(tmp_path, plan=plan, num_shards=shards)
            receipt = receipt_file("train", 0, shards)
            bar.refresh({plan_file("train"), receipt})
            assert (progress.tasks[0].total, progress.tasks[0].completed) == (shards, 1)


def bar_job(directory, sources="a", splits=("train",)):
    found = tuple(Source(split, name, Stat(0)) for split in splits for name in sources)
    return ConversionJob(None, found, str(directory))


def write_claim(directory, split="train", **fields):
    claim = asdict(Claim("p", 2, 20, 2000, 0, None, SHARD_FILES, {})) | fields
    (directory / "_shards").mkdir(exist_ok=True)
    (directory / plan_file(split)).write_bytes(sealed_line(claim))


def write_receipt(directory, shard, **fields):
    """Of two shards; a receipt with 10 records."""
    receipt = Receipt("p", "train", shard, 2, 10, 1200, 0, "", "", "", {}, (), {}, {}, {}, "", None)
    replace(receipt, **fields).write(bar_job(directory))


@pytest.mark.parametrize("wrong", [{"num_shards": 0}, {"bytes": []}, {"more": 1}], ids=str)
def test_a_damaged_claim_stops_the_bar_of_its_split_only(tmp_path, wrong):
    job = bar_job(tmp_path, splits=("train", "validation"))
    write_claim(tmp_path, "train", **wrong)
    write_claim(tmp_path, "validation")
    with Progress() as progress:
        bars = [_Bar(job, split, progress) for split in job.splits]
        _update(job, bars)
        assert [task.description for task in progress.tasks] == [
            "train: scanning",
            "validation: shards",
        ]
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


def test_without_a_terminal_a_conversion_says_a_line_per_split_every_minute(tmp_path, monkeypatch):
    job = bar_job(tmp_path, splits=("train", "validation"))
    write_claim(tmp_path)
    write_receipt(tmp_path, 0)
    console = Console(file=io.StringIO())
    monkeypatch.setattr(progress_bars, "_LINE_SECONDS", 0.01)
    with progress_bars.progress_bars(job, console):
        while console.file.getvalue().count("\n") < 4:
            time.sleep(0.01)
    assert console.file.getvalue().splitlines()[:2] == [
        "train: shards 1 of 2, 0 records/s, 0 MB/s",
        "validation: scanning",
    ]
    monkeypatch.setattr(progress_bars, "_LINE_SECONDS", 60.0)
    with progress_bars.progress_bars(job, silent := Console(file=io.StringIO())):
        pass
    assert silent.file.getvalue() == ""


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
        [polling] = [
            thread
            for thread in threading.enumerate()
            if thread not in before and "(poll)" in thread.name
        ]
        if error is not KeyboardInterrupt:
            threading.Timer(0.2, answer.set).start()
        if error:
            raise error("over")
    assert polling.is_alive() == (error is KeyboardInterrupt)
    answer.set()


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
    assert re.search(
        rf"train: shards[^\r\n]*{shards}/{shards}[^\r\n]*[0-9] records/s, ".encode(), shown
    ), shown


def _read(terminal):
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""
