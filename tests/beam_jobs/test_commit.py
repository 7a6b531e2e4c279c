"""Commit trusts no runner: each way of losing data is refused by name, and leaves no manifest."""

import dataclasses
import json
import time
import uuid

import numpy as np
import pytest

from beam_jobs.converter import ConversionJob
from beam_jobs.rows.digests import BucketSums, add_sums, hash_sum
from beam_jobs.rows.references import concat
from beam_jobs.split.claims import claim
from beam_jobs.split.commit import Verdict, commit_split
from beam_jobs.split.copies import Counted
from beam_jobs.split.gather import write_shard
from beam_jobs.split.ledger import SourceSummary, Written, finished_shard, finished_shards
from beam_jobs.split.plan import SplitPlan, bucket_sums, by_bucket
from converters.imagenet.converter import ImagenetConverter
from converters.imagenet.layouts import find_raw
from pipeline.errors import ConversionError, RawDataError, StorageError
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage

STORAGE = LocalStorage()


@dataclasses.dataclass
class Gathered:
    """A conversion without Beam, stopped just before its commit."""

    plan: SplitPlan
    rows: dict
    summaries: list
    results: list

    def commit(self):
        return commit_split(self.plan, self.summaries, self.results, Counted())


def plan_and_rows(raw, out, split="train", **options):
    found = find_raw(str(raw.directory), [split], raw.synsets, None)
    converter = ImagenetConverter(tuple(raw.synsets), found.validation_labels)
    job = ConversionJob(
        converter,
        found.sources,
        str(out),
        num_shards={split: 3},
        run_id=uuid.uuid4().hex,
        **options,
    )
    pieces, sums, summaries = {}, {}, []
    for number, source in enumerate(job.sources):
        refs = concat(list(converter.scan(STORAGE, source)))
        summaries.append(SourceSummary(number, None, len(refs), hash_sum(refs.ranks(0, split))))
        for bucket, piece in by_bucket(job, split, refs):
            pieces.setdefault(bucket, []).append(piece)
            sums[bucket] = add_sums(
                [sums.get(bucket, BucketSums()), bucket_sums(job, split, piece)]
            )
    plan = SplitPlan(job, split, sums)
    rows = {shard: [] for shard in range(plan.num_shards)}
    for bucket, batch in pieces.items():
        for shard, refs in plan.assign(bucket, batch):
            rows[shard].append(refs)
    return plan, {shard: concat(batch) for shard, batch in rows.items()}, summaries


@pytest.fixture
def gather(raw_imagenet, tmp_path):
    def gather(split="train", **options):
        plan, rows, summaries = plan_and_rows(
            raw_imagenet.write(), tmp_path / "out", split, **options
        )
        claim(plan)
        results = [Written.of(*write_shard(plan, shard, [refs])) for shard, refs in rows.items()]
        return Gathered(plan, rows, summaries, results)

    return gather


def test_a_whole_split_is_committed_with_its_verdict(gather, tmp_path):
    verdict = gather().commit()
    assert (verdict.ok, verdict.summary["rejected"]) == (True, 0)
    assert verdict.message.startswith("18 records, ")
    entry = read_manifest(f"{tmp_path}/out").split("train")
    assert entry.num_records == 18
    assert entry.sources["inputs"] == 3


def test_a_verdict_belongs_to_one_run_and_is_removed_once_fetched(gather):
    gathered, failed = gather(), Verdict("another run", "train", False, "refused")
    job, verdict = gathered.plan.job, gathered.commit()
    failed.write(job)
    assert Verdict.fetch(job, "train") == verdict
    assert Verdict.fetch(job, "train") is None
    assert Verdict.fetch(dataclasses.replace(job, run_id="another run"), "train") == failed


def test_a_commit_removes_the_verdicts_of_runs_that_ended_before_this_one_began(gather, tmp_path):
    job = ConversionJob(None, (), f"{tmp_path}/out")
    for run, seconds in (("killed", -1), ("twin", 60)):
        Verdict(run, "train", True, "", at=time.time() + seconds).write(job)
    (tmp_path / "out/_shards/train.verdict.damaged.json").write_text("{")
    (tmp_path / "out/_shards/train.verdict.of-0.1.json").write_text('{"at": 1.0}')
    verdict = gather().commit()
    left = {path.name for path in (tmp_path / "out/_shards").glob("*verdict*")}
    assert left == {"train.verdict.twin.json", f"train.verdict.{verdict.run_id}.json"}


def test_a_damaged_verdict_is_not_believed(gather, tmp_path):
    gathered = gather()
    verdict = gathered.commit()
    path = tmp_path / f"out/_shards/train.verdict.{verdict.run_id}.json"
    path.write_text(path.read_text().replace("18 records", "19 records"))
    with pytest.raises(
        ConversionError, match=r"train\.verdict\..* is damaged\. Run the same command again"
    ):
        Verdict.fetch(gathered.plan.job, "train")


def test_committing_twice_changes_nothing(gather, tmp_path):
    gathered = gather()
    gathered.commit()
    before = (tmp_path / "out/manifest.json").read_bytes()
    gathered.commit()
    assert (tmp_path / "out/manifest.json").read_bytes() == before


LOSSES = {
    "an input": (lambda g: g.summaries.pop(1), r"input .*train\.tar \(n00000002\) arrived 0 times instead of 1"),
    "an input twice": (lambda g: g.summaries.append(g.summaries[0]), r"\(n00000001\) arrived 2 times instead of 1"),
    "a shard": (lambda g: g.results.pop(), "shard 2 arrived 0 times instead of 1"),
    "a shard twice": (lambda g: g.results.append(g.results[0]), "shard 0 arrived 2 times"),
    "a foreign shard": (lambda g: g.results.append(dataclasses.replace(g.results[0], shard=7)), "shard 7 arrived 1 times"),
    "everything": (lambda g: (g.results.clear(), g.summaries.clear()), "arrived 0 times"),
}  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES)
def test_a_commit_fails_if_the_runner_lost_or_repeated_data(gather, tmp_path, loss):
    gathered = gather()
    lose, message = LOSSES[loss]
    lose(gathered)
    with pytest.raises(
        ConversionError, match=rf"the runner lost or repeated data: .*{message}.*No manifest"
    ):
        gathered.commit()
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_receipt_of_another_shard_than_gather_announced_is_found_out(gather):
    gathered = gather()
    gathered.results[1] = dataclasses.replace(gathered.results[1], crc32c=1)
    with pytest.raises(ConversionError, match="the receipt of shard 1 .* another plan's"):
        gathered.commit()


def test_rows_lost_on_the_way_to_a_shard_are_found_out(raw_imagenet, tmp_path):
    plan, rows, summaries = plan_and_rows(raw_imagenet, tmp_path / "out")
    rows[1] = rows[1].take(np.arange(len(rows[1]) - 1))
    results = [Written.of(*write_shard(plan, shard, [refs])) for shard, refs in rows.items()]
    with pytest.raises(ConversionError, match="18 records scanned, 17 written, 0 rejected"):
        commit_split(plan, summaries, results, Counted())
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_row_lost_and_another_one_twice_are_found_out_though_the_count_is_right(
    raw_imagenet, tmp_path
):
    plan, rows, summaries = plan_and_rows(raw_imagenet, tmp_path / "out", max_bad_records=5)
    rows[1] = concat([rows[1].take(np.arange(1, len(rows[1]))), rows[2].take(np.array([0]))])
    results = [Written.of(*write_shard(plan, shard, [refs])) for shard, refs in rows.items()]
    assert sum(receipt.records for receipt in finished_shards(plan)) == 18
    with pytest.raises(
        ConversionError, match="as many records arrived as were scanned, but not the same ones"
    ):
        commit_split(plan, summaries, results, Counted())


def test_a_shard_or_receipt_that_was_exchanged_is_found_out(gather, tmp_path):
    gathered = gather()
    shard, receipt = (
        tmp_path / "out" / name
        for name in ("train-00001-of-00003", "_shards/train-00001-of-00003.json")
    )
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(
        ConversionError, match=r"train-00001-of-00003 has \d+ bytes; its receipt states"
    ):
        gathered.commit()
    shard.unlink()
    with pytest.raises(
        ConversionError, match=r"train-00001-of-00003 is missing; its receipt states \d+ bytes"
    ):
        gathered.commit()
    shard.write_bytes(whole)
    receipt.write_text(receipt.read_text().replace(gathered.plan.digest, "0" * 32))
    with pytest.raises(
        ConversionError, match=r"receipt of shard 1 of 'train' .* is missing, damaged or another"
    ):
        gathered.commit()
    assert not (tmp_path / "out/manifest.json").exists()


def test_bad_records_are_all_listed_before_the_split_fails(gather, raw_imagenet, tmp_path):
    raw_imagenet.train["n00000001"]["n00000001_3.JPEG"] = b""
    raw_imagenet.train["n00000002"]["n00000002_1.JPEG"] = b"no image"
    with pytest.raises(
        ConversionError,
        match=r"2 bad records; --max-bad-records allows 1:\n  \S+\.tar: train/n00000001/",
    ):
        gather(max_bad_records=1).commit()
    ledger = [
        json.loads(line)
        for line in (tmp_path / "out/_rejects/train.jsonl").read_text().splitlines()
    ]
    assert [(line["key"], line["stage"]) for line in ledger] == [
        ("train/n00000001/n00000001_3.JPEG", "scan"),
        ("train/n00000002/n00000002_1.JPEG", "convert"),
    ]
    assert not (tmp_path / "out/manifest.json").exists()
    # The fixture has written the tars again, with other times.
    assert gather(max_bad_records=2, verify_existing=True).commit().summary["rejected"] == 2
    assert read_manifest(f"{tmp_path}/out").split("train").rejected == 2


def test_a_second_split_joins_the_manifest_and_another_dataset_is_refused(gather, tmp_path):
    gather().commit()
    later = gather("validation")
    later.commit()
    manifest = read_manifest(f"{tmp_path}/out")
    assert {name: entry.num_records for name, entry in manifest.splits.items()} == {
        "train": 18,
        "validation": 4,
    }
    path = tmp_path / "out/manifest.json"
    edited = json.loads(path.read_text().replace('"imagenet2012"', '"flowers"'))
    del edited["checksum"]
    path.write_text(json.dumps(edited))
    with pytest.raises(
        ConversionError, match=r"holds train of dataset 'flowers'.* Give another directory"
    ):
        later.commit()


def test_a_finished_shard_is_reused_and_a_damaged_one_rewritten(gather, tmp_path):
    gathered = gather()
    path = tmp_path / "out/train-00000-of-00003"
    inode = path.stat().st_ino
    assert write_shard(gathered.plan, 0, [gathered.rows[0]])[1]
    assert path.stat().st_ino == inode
    data = path.read_bytes()
    path.write_bytes(data[:-5])
    assert finished_shard(gathered.plan, 0) is None
    assert not write_shard(gathered.plan, 0, [gathered.rows[0]])[1]
    assert path.read_bytes() == data


def test_raw_data_that_changes_between_scan_and_gather_is_named(raw_imagenet, tmp_path):
    plan, rows, _ = plan_and_rows(raw_imagenet, tmp_path / "out")
    tar = raw_imagenet.directory / "ILSVRC2012_img_train.tar"
    data = tar.read_bytes()
    tar.write_bytes(data + b"more")
    with pytest.raises(
        RawDataError, match=rf"train\.tar has {len(data) + 4} bytes; it had {len(data)} bytes"
    ):
        write_shard(plan, 0, [rows[0]])
    tar.unlink()
    with pytest.raises(StorageError, match=r"cannot read .*train\.tar: No such file"):
        write_shard(plan, 0, [rows[0]])
    assert not list((tmp_path / "out").glob("*train-0*"))
