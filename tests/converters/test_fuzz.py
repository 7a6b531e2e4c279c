"""Damaged inputs: never a crash, a hang, a file elsewhere or a silent loss.

In this process and without Beam. A source is a row of fuzz_sources. The suite takes a tenth of each
row's inputs; with SWEEP=1 in the environment, it takes all five hundred."""

import dataclasses
import functools
import os
import re
import resource
import shutil
import signal
import zlib
from pathlib import Path

import hostile_tars
import numpy as np
import pytest
from converter_rows import CONVERTERS
from fuzz_sources import SOURCES, TRAIN_TAR, VALIDATION_TAR, Files, Source, with_a_table
from rich.console import Console
from stages import without_beam
from sweep import SWEEP

from beam_jobs.converter import ConversionJob
from beam_jobs.launch import launch
from converters.command_line import beam_options
from pipeline.errors import InfeedError
from pipeline.shards.manifest import read_manifest

# Between Pillow's bound and ours: a word on stderr, no failure.
pytestmark = pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")

CONSOLE = Console(quiet=True)
CASES = [(source, mutation) for source, row in SOURCES.items() for mutation in row.mutations]


LIMIT_SECONDS = 20
ALLOWED = 100_000  # bad records


@dataclasses.dataclass(frozen=True)
class Ended:
    """How one input ended: refused with an error of ours, or with rows that were written or rejected."""

    refused: str = ""
    written: int = 0
    rejected: int = 0


@pytest.fixture(autouse=True)
def _in_bounded_time():
    """A hang becomes a failure."""

    def late(*_):
        raise TimeoutError(f"still running after {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def convert(find, raw: Path, out: Path) -> Ended:
    signal.alarm(LIMIT_SECONDS)
    shards = {"num_shards": {"train": 2}, "max_bad_records": ALLOWED, "run_id": "fuzz"}
    args = type("Args", (), {"runner": "local", "local_processes": 1})
    try:
        with without_beam():
            launch(
                ConversionJob(*find(str(raw), str(out)), str(out), **shards),
                beam_options(args, []),
                CONSOLE,
            )
    except InfeedError as e:
        return Ended(refused=str(e))
    splits = read_manifest(str(out)).splits.values()
    ledgers = [path.read_text().splitlines() for path in out.glob("_rejects/*.jsonl")]
    return Ended("", sum(entry.num_records for entry in splits), sum(map(len, ledgers)))


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch):
    """Fifty an input take longer than all the rest, and no machine crashes here."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """whole(kind): its files, undamaged."""
    made: dict[str, Files] = {}

    def files(kind):
        if kind not in made and kind == "Kaggle":
            made[kind] = with_a_table(files("imagenet folders"))
        elif kind not in made:
            directory = tmp_path_factory.mktemp("whole")
            CONVERTERS[kind].write(directory / "raw")
            paths = (path for path in (directory / "raw").rglob("*") if path.is_file())
            made[kind] = {
                str(path.relative_to(directory / "raw")): path.read_bytes()
                for path in sorted(paths)
            }
        return made[kind]

    return files


def tree(directory: Path, but: Path) -> dict[str, int]:
    return {
        str(p): p.lstat().st_ino for p in directory.rglob("*") if p != but and but not in p.parents
    }


def check(source: Source, files: Files, directory: Path) -> Ended:
    """Converts the files under the directory, and checks all that holds for any input."""
    raw, out = directory / "a/b/c/raw", directory / "a/b/c/out"
    for path, data in files.items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_bytes(data)
    return checked(source, raw, out, directory, source.records(files))


def checked(source: Source, raw: Path, out: Path, directory: Path, least: int) -> Ended:
    before = tree(directory, out)
    ended = convert(source.find, raw, out)
    assert tree(directory, out) == before
    # the commit compares with the scan
    assert ended.refused or ended.written + ended.rejected >= least, ended
    shutil.rmtree(directory)
    return ended


@pytest.fixture(scope="module")
def written(whole, tmp_path_factory):
    """written(name): how many records of the undamaged source arrive."""

    @functools.cache
    def count(name):
        ended = check(
            SOURCES[name], whole(SOURCES[name].kind), tmp_path_factory.mktemp("written") / "good"
        )
        assert not ended.refused
        return ended.written

    return count


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mutation"), CASES, ids=lambda value: value.replace(" ", "-"))
def test_damaged_data_are_written_or_listed_and_nothing_crashes_or_hangs(
    whole, written, tmp_path, name, mutation
):
    source = SOURCES[name]
    good = whole(source.kind)
    targets = [path for path in good if Path("/", path).match(source.damaged)]
    least = written(name) - (source.loses or 0)
    for number in range(source.inputs if SWEEP else -(-source.inputs // 10)):
        rng = np.random.default_rng([number, zlib.crc32(f"{name} {mutation}".encode())])
        target = targets[int(rng.integers(len(targets)))]
        files = {**good, target: source.mutations[mutation](rng, good[target])}
        ended = check(source, files, tmp_path / str(number))
        if source.loses is not None and "has no records" not in ended.refused:
            assert (ended.refused, ended.written >= least) == ("", True), (number, target, ended)


JPEG = hostile_tars.small_jpeg()
HOSTILE = hostile_tars.hostile(JPEG)


def among_good(part: bytes) -> bytes:
    before, after = (
        hostile_tars.member(b"ILSVRC2012_val_0000000%d.JPEG" % n, JPEG) for n in (1, 2)
    )
    return before + part + after + bytes(1024)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_member_costs_no_record_before_it_and_writes_no_file(whole, tmp_path, name):
    tar = among_good(HOSTILE[name])
    classes = [
        hostile_tars.member(b"n0000000%d.tar" % n, data)
        for n, data in ((1, tar), (2, among_good(b"")))
    ]
    good = whole("imagenet tars")
    inside = {**good, TRAIN_TAR: b"".join(classes) + bytes(1024)}
    ended = check(SOURCES["train tar"], inside, tmp_path / "class tar")
    assert not ended.refused
    assert ended.written >= 3 + 4
    ended = check(
        SOURCES["validation tar"], {**good, VALIDATION_TAR: tar}, tmp_path / "validation tar"
    )
    assert not ended.refused
    among_classes = classes[1] + HOSTILE[name] + bytes(1024)
    check(SOURCES["train tar"], {**good, TRAIN_TAR: among_classes}, tmp_path / "train tar")


def odd_folder(raw: Path, jpeg: bytes) -> int:
    """Fills a class's folder with what may lie in one; returns how many records that is."""
    for name in (
        "two\nlines.jpg",
        "\x1b[31mred.jpg",
        "odd \udcff.jpg",
        "[bold].jpg",
        "-rf.jpg",
        "x" * 251 + ".jpg",
    ):
        (raw / name).write_bytes(jpeg)
    (raw / "folder.jpg").mkdir()
    (raw / "good link.jpg").symlink_to(raw / "-rf.jpg")
    (raw / "broken link.jpg").symlink_to("/nowhere/at/all.jpg")
    (raw / "link to itself.jpg").symlink_to("link to itself.jpg")
    (raw / "link to its folder.jpg").symlink_to(".")
    os.mkfifo(raw / "pipe.jpg")  # to open it would wait for ever
    return len(list(raw.iterdir()))


@pytest.mark.parametrize("name", ["images in folders", "JPEG files"])
def test_every_entry_of_a_class_folder_is_written_or_listed(whole, tmp_path, name):
    source, raw = SOURCES[name], tmp_path / "a/raw"
    for path, data in whole(source.kind).items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_bytes(data)
    odd = odd_folder(next(path for path in (raw / "train").iterdir() if path.is_dir()), JPEG)
    ended = checked(
        source, raw, tmp_path / "a/out", tmp_path / "a", source.records(whole(source.kind))
    )
    assert (ended.refused, ended.rejected >= 5) == ("", True)
    assert odd > 12


@pytest.mark.parametrize("name", ["bomb", "bomb in a tar", "truncated", "not gzip", "no tar in it"])
def test_a_compressed_tar_is_bounded_by_the_disk_and_leaves_nothing_on_it(whole, tmp_path, name):
    good = whole("imagenet tars")
    data = {
        "bomb": lambda: hostile_tars.compressed(bytes(1 << 25)),
        "bomb in a tar": lambda: hostile_tars.compressed(
            hostile_tars.member(b"n00000001.tar", bytes(1 << 25))
        ),
        "truncated": lambda: hostile_tars.compressed(good[TRAIN_TAR])[:-100],
        "not gzip": lambda: good[TRAIN_TAR],
        "no tar in it": lambda: hostile_tars.compressed(b"nothing"),
    }[name]()
    files = {path: data for path, data in good.items() if path != TRAIN_TAR} | {
        f"{TRAIN_TAR}.gz": data
    }
    none = dataclasses.replace(SOURCES["train tar"], records=lambda files: 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    # a disk of 16 MiB, for one file
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 24, before[1]))
    try:
        ended = check(none, files, tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    expected = "File too large" if "bomb" in name else "truncated|damaged|breaks off"
    assert re.search(expected, ended.refused)
