"""Five hundred damaged inputs: never a crash, a hang, a file elsewhere or a silent loss.

In this process and without Beam, but for a few: scan, assign, write and commit as a worker does them. A source is a
row of SOURCES: where its files are, what finds it, and a walk that counts its records without our code."""

import contextlib
import dataclasses
import io
import itertools
import json
import os
import re
import resource
import shutil
import signal
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hostile_tars
import mutations
import numpy as np
import pytest
from hostile_tars import walk
from rich.console import Console

from beam_jobs.commit import commit_split
from beam_jobs.job import Job
from beam_jobs.launch import dry_run
from beam_jobs.plan import SplitPlan, by_bucket
from beam_jobs.proof import ShardResult, SourceSummary, check_scanned
from beam_jobs.references import concat
from beam_jobs.sums import add_sums, key_digest, measure
from beam_jobs.write import write_shard
from converters import imagenet_to_gcs
from converters.image_folder import ImageFolderConverter
from converters.image_folder_layouts import find_folders
from converters.imagenet import ImagenetConverter
from converters.imagenet_layouts import TRAIN_TAR, VALIDATION_TAR, find_raw
from converters.synsets import read_synsets
from pipeline.shards.errors import InfeedError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schemes import open_storage

# Between Pillow's bound and ours: a word on stderr, no failure.
pytestmark = pytest.mark.filterwarnings("ignore:Image size:PIL.Image.DecompressionBombWarning")

LIMIT_SECONDS = 20
ALLOWED = 100_000  # bad records

Files = dict[str, bytes]  # path under the raw data directory -> its bytes


def find_imagenet(raw: str, out: str):
    synsets = tuple(read_synsets(open_storage(raw), f"{raw}/synsets.txt"))
    found = find_raw(raw, ["train", "validation"], synsets, out)
    return ImagenetConverter(synsets, found.validation_labels), found.sources


def find_image_folder(raw: str, out: str):
    found = find_folders(raw, [], None)
    return ImageFolderConverter(found.classes), found.sources


def in_tars(files: Files) -> int:
    classes = walk(files[TRAIN_TAR])
    return sum(len(walk(data)) for data in classes) + len(walk(files[VALIDATION_TAR]))


def in_folders(files: Files) -> int:
    return sum("/" in path and not Path(path).name.startswith(".") for path in files)


@dataclass(frozen=True)
class Source:
    """kind: of write_raw_data. damaged: which file is damaged, as a pattern. records: how many there are at least.

    loses: how many records one input may cost at most; None if it may stop the conversion, with an error of ours."""

    kind: str
    find: Callable[[str, str], Any]
    damaged: str
    records: Callable[[Files], int]
    mutations: dict[str, mutations.Mutation]
    inputs: int  # of each mutation
    loses: int | None = 1


TARS = {**mutations.BYTES, "header field": mutations.header_field}
IMAGES = {**mutations.BYTES, "absurd size": mutations.absurd_size}
IMAGENET, FOLDERS = ("imagenet tars", find_imagenet), ("image folder by split", find_image_folder)
SOURCES = {
    "train tar": Source(*IMAGENET, TRAIN_TAR, in_tars, TARS, 12, None),
    "validation tar": Source(*IMAGENET, VALIDATION_TAR, in_tars, TARS, 10, None),
    "label files": Source(*IMAGENET, "*.txt", in_tars, dict(mutations.BYTES), 4, None),
    "Kaggle's table": Source("Kaggle", find_imagenet, "*.csv", in_folders, dict(mutations.BYTES), 4, None),
    "images in folders": Source("imagenet folders", find_imagenet, "*/**/*.JPEG", in_folders, IMAGES, 6),
    "JPEG files": Source(*FOLDERS, "**/*.jpeg", in_folders, IMAGES, 6),
    "PNG files": Source(*FOLDERS, "**/*.png", in_folders, IMAGES, 6),
    "WebP files": Source(*FOLDERS, "**/*.webp", in_folders, IMAGES, 6),
}
CASES = [(source, mutation) for source, row in SOURCES.items() for mutation in row.mutations]


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """A hang becomes a failure."""

    def late(*_):
        raise TimeoutError(f"still at it after {LIMIT_SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def convert_in_process(job: Job) -> int:
    """Everything that workers do, one after the other; returns how many rows were scanned."""
    scanned, storage = 0, open_storage(job.output_dir)
    for split in job.splits:
        pieces, summaries = defaultdict(list), []
        for number, source in ((n, s) for n, s in enumerate(job.sources) if s.split == split):
            batches = list(job.converter.scan(open_storage(source.uri), source))
            keys = sum(key_digest(refs.key.tolist()) for refs in batches)
            summaries.append(SourceSummary(number, sum(map(len, batches)), keys))
            for bucket, refs in itertools.chain.from_iterable(by_bucket(job, split, refs) for refs in batches):
                pieces[bucket].append(refs)
        scanned += sum(summary.records for summary in summaries)
        plan = SplitPlan(
            job, split, {b: add_sums(measure(job.converter, refs) for refs in rows) for b, rows in pieces.items()}
        )
        check_scanned(plan, summaries)
        by_shard = defaultdict(list)
        for bucket, rows in pieces.items():
            for shard, refs in plan.assign(bucket, rows):
                by_shard[shard].append(refs)
        receipts = [
            write_shard(storage, storage, plan, shard, concat(by_shard[shard])) for shard in range(plan.num_shards)
        ]
        commit_split(storage, plan, summaries, [ShardResult.of(receipt) for receipt in receipts])
    return scanned


def ledger(out: Path) -> list[dict]:
    return [json.loads(line) for path in out.glob("_rejects/*.jsonl") for line in path.read_text().splitlines()]


def with_a_table(files: Files) -> Files:
    """Kaggle's labels in the place of synset_labels.txt."""
    labels = files["synset_labels.txt"].decode().split()
    rows = (f"ILSVRC2012_val_{n:08d},{label} 1 2 3 4 \n" for n, label in enumerate(labels, 1))
    table = "ImageId,PredictionString\n" + "".join(rows)
    return {**{k: v for k, v in files.items() if k != "synset_labels.txt"}, "LOC_val_solution.csv": table.encode()}


@pytest.fixture(scope="module")
def whole(write_raw_data, tmp_path_factory):
    """whole(kind): its files, undamaged."""
    made: dict[str, Files] = {}

    def files(kind):
        if kind not in made and kind == "Kaggle":
            made[kind] = with_a_table(files("imagenet folders"))
        elif kind not in made:
            directory = tmp_path_factory.mktemp("whole")
            write_raw_data(kind, directory / "raw")
            paths = (path for path in (directory / "raw").rglob("*") if path.is_file())
            made[kind] = {str(path.relative_to(directory / "raw")): path.read_bytes() for path in sorted(paths)}
        return made[kind]

    return files


@dataclass(frozen=True)
class Ended:
    """How one input ended: refused with an error of ours, or so many rows."""

    refused: str = ""
    scanned: int = 0
    written: int = 0
    rejected: int = 0


def convert(find, raw: Path, out: Path) -> Ended:
    with limited():
        try:
            converter, sources = find(str(raw), str(out))
            job = Job(converter, sources, str(out), num_shards={"train": 2}, max_bad_records=ALLOWED, run_id="fuzz")
            scanned = convert_in_process(job)
        except InfeedError as e:
            return Ended(refused=str(e))
    written = sum(entry.num_records for entry in read_manifest(str(out)).splits.values())
    return Ended("", scanned, written, len(ledger(out)))


def tree(directory: Path, but: Path) -> dict[str, int]:
    return {str(p): p.lstat().st_ino for p in directory.rglob("*") if p != but and but not in p.parents}


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
    assert ended.refused or ended.written + ended.rejected == ended.scanned >= least, ended
    shutil.rmtree(directory)
    return ended


@pytest.mark.parametrize(("name", "mutation"), CASES, ids=lambda value: value.replace(" ", "-"))
def test_damaged_data_are_written_or_listed_and_nothing_crashes_or_hangs(whole, tmp_path, name, mutation):
    source = SOURCES[name]
    good = whole(source.kind)
    targets = [path for path in good if Path("/", path).match(source.damaged)]
    least = check(source, good, tmp_path / "good").written - (source.loses or 0)
    for number in range(source.inputs):
        rng = np.random.default_rng([number, zlib.crc32(f"{name} {mutation}".encode())])
        target = targets[int(rng.integers(len(targets)))]
        files = {**good, target: source.mutations[mutation](rng, good[target])}
        ended = check(source, files, tmp_path / str(number))
        assert source.loses is None or (not ended.refused and ended.written >= least), (number, target, ended)


def test_they_are_five_hundred():
    assert sum(row.inputs * len(row.mutations) for row in SOURCES.values()) >= 500


JPEG = hostile_tars.small_jpeg()
HOSTILE = hostile_tars.hostile(JPEG)


def among_good(part: bytes) -> bytes:
    before, after = (hostile_tars.member(b"ILSVRC2012_val_0000000%d.JPEG" % n, JPEG) for n in (1, 2))
    return before + part + after + bytes(1024)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_member_costs_no_record_before_it_and_writes_no_file(whole, tmp_path, name):
    tar = among_good(HOSTILE[name])
    classes = [hostile_tars.member(b"n0000000%d.tar" % n, data) for n, data in ((1, tar), (2, among_good(b"")))]
    good = whole("imagenet tars")
    inside = {**good, TRAIN_TAR: b"".join(classes) + bytes(1024)}
    ended = check(SOURCES["train tar"], inside, tmp_path / "class tar")
    assert not ended.refused
    assert ended.written >= 3 + 4
    ended = check(SOURCES["validation tar"], {**good, VALIDATION_TAR: tar}, tmp_path / "validation tar")
    assert not ended.refused
    among_classes = classes[1] + HOSTILE[name] + bytes(1024)
    check(SOURCES["train tar"], {**good, TRAIN_TAR: among_classes}, tmp_path / "train tar")


def odd_folder(raw: Path, jpeg: bytes) -> int:
    """Fills a class's folder with what may lie in one; returns how many records that is."""
    for name in ("two\nlines.jpg", "\x1b[31mred.jpg", "odd \udcff.jpg", "[bold].jpg", "-rf.jpg", "x" * 251 + ".jpg"):
        (raw / name).write_bytes(jpeg)
    (raw / "folder.jpg").mkdir()
    (raw / "good link.jpg").symlink_to(raw / "-rf.jpg")
    (raw / "broken link.jpg").symlink_to("/nowhere/at/all.jpg")
    (raw / "link to itself.jpg").symlink_to("link to itself.jpg")
    (raw / "link to its folder.jpg").symlink_to(".")
    os.mkfifo(raw / "pipe.jpg")  # to open it would wait for ever
    return len(list(raw.iterdir()))


@pytest.mark.parametrize("name", ["images in folders", "JPEG files"])
def test_whatever_lies_in_a_folder_is_written_or_listed(whole, tmp_path, name):
    source, raw = SOURCES[name], tmp_path / "a/raw"
    for path, data in whole(source.kind).items():
        (raw / path).parent.mkdir(parents=True, exist_ok=True)
        (raw / path).write_bytes(data)
    odd = odd_folder(next(path for path in (raw / "train").iterdir() if path.is_dir()), JPEG)
    ended = checked(source, raw, tmp_path / "a/out", tmp_path / "a", source.records(whole(source.kind)))
    assert (ended.refused, ended.rejected >= 5) == ("", True)
    assert odd > 12


@pytest.mark.parametrize("name", ["twice", "not UTF-8", "control characters", "sparse", "size back to itself"])
def test_the_real_command_ends_as_the_steps_do(whole, tmp_path, shard_digests, name):
    raw, files = tmp_path / "raw", {**whole("imagenet tars"), VALIDATION_TAR: among_good(HOSTILE[name])}
    raw.mkdir()
    for path, data in files.items():
        (raw / path).write_bytes(data)
    flags = [f"--raw_data_dir={raw}", f"--label_file={raw}/synsets.txt", "--num_train_shards=2"]
    with limited():
        imagenet_to_gcs.main([*flags, f"--gcs_output_path={tmp_path}/out", f"--max_bad_records={ALLOWED}"])
    steps = convert(find_imagenet, raw, tmp_path / "steps")
    assert not steps.refused
    assert shard_digests(tmp_path / "out") == shard_digests(tmp_path / "steps")
    assert ledger(tmp_path / "out") == ledger(tmp_path / "steps")


@pytest.mark.parametrize("name", ["not UTF-8", "control characters", "pax name with a zero", "twice"])
def test_a_dry_run_prints_odd_names(whole, tmp_path, name):
    (tmp_path / "raw").mkdir()
    for path, data in {**whole("imagenet tars"), VALIDATION_TAR: among_good(HOSTILE[name])}.items():
        (tmp_path / "raw" / path).write_bytes(data)
    job = Job(*find_imagenet(str(tmp_path / "raw"), ""), str(tmp_path / "out"))
    printed = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)  # as strict as stdout is
    dry_run(job, Console(file=printed))
    printed.seek(0)
    text = printed.read()
    assert "rejected" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("name", ["bomb", "bomb in a tar", "truncated", "not gzip", "no tar in it"])
def test_a_compressed_tar_is_bounded_by_the_disk_and_leaves_nothing_on_it(whole, tmp_path, name):
    good = whole("imagenet tars")
    bomb = bytes(1 << 28)
    data = {
        "bomb": hostile_tars.compressed(bomb),
        "bomb in a tar": hostile_tars.compressed(hostile_tars.member(b"n00000001.tar", bomb)),
        "truncated": hostile_tars.compressed(good[TRAIN_TAR])[:-100],
        "not gzip": good[TRAIN_TAR],
        "no tar in it": hostile_tars.compressed(b"nothing"),
    }[name]
    files = {path: data for path, data in good.items() if path != TRAIN_TAR} | {f"{TRAIN_TAR}.gz": data}
    none = dataclasses.replace(SOURCES["train tar"], records=lambda files: 0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, before[1]))  # a disk of 64 MiB, for one file
    try:
        ended = check(none, files, tmp_path / "a")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    expected = "File too large" if "bomb" in name else "truncated|damaged|breaks off"
    assert re.search(expected, ended.refused)
