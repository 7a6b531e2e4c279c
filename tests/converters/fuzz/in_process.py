"""A conversion in this process and without Beam: scan, assign, write and commit as a worker does them; in bounded time.

test_fuzz has this folder on its path."""

import contextlib
import itertools
import json
import signal
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from beam_jobs.bucket_sums import add_sums, measure
from beam_jobs.claims import claim
from beam_jobs.commit import commit_split
from beam_jobs.completeness import SourceSummary, check_scanned
from beam_jobs.conversion_job import ConversionJob
from beam_jobs.packed_files import raw_storage
from beam_jobs.packed_files import scanned as scanned_of
from beam_jobs.references import concat
from beam_jobs.shard_plan import SplitPlan, by_bucket
from beam_jobs.write import write_shard
from pipeline.errors import InfeedError
from pipeline.shards.key_digest import key_digest
from pipeline.shards.manifest import read_manifest
from pipeline.storage.schemes import open_storage

LIMIT_SECONDS = 20
ALLOWED = 100_000  # bad records


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


def convert_in_process(job: ConversionJob) -> int:
    """Everything that workers do, one after the other; returns how many rows were scanned."""
    scanned, storage = 0, open_storage(job.output_dir)
    for split in job.splits:
        pieces, summaries = defaultdict(list), []
        for number, source in ((n, s) for n, s in enumerate(job.sources) if s.split == split):
            batches = list(scanned_of(job, source))
            keys = sum(key_digest(refs.key.tolist()) for refs in batches)
            summaries.append(SourceSummary(number, sum(map(len, batches)), keys))
            for bucket, refs in itertools.chain.from_iterable(by_bucket(job, split, refs) for refs in batches):
                pieces[bucket].append(refs)
        scanned += sum(summary.records for summary in summaries)
        sums = {b: add_sums(measure(job.converter, refs) for refs in rows) for b, rows in pieces.items()}
        plan = SplitPlan(job, split, sums)
        check_scanned(plan, summaries)
        claim(storage, plan)
        by_shard = defaultdict(list)
        for bucket, rows in pieces.items():
            for shard, refs in plan.assign(bucket, rows):
                by_shard[shard].append(refs)
        receipts = [
            write_shard(raw_storage(job, split), storage, plan, shard, concat(by_shard[shard]))
            for shard in range(plan.num_shards)
        ]
        commit_split(storage, plan, summaries, receipts)
    return scanned


def ledger(out: Path) -> list[dict]:
    return [json.loads(line) for path in out.glob("_rejects/*.jsonl") for line in path.read_text().splitlines()]


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
            job = ConversionJob(
                converter, sources, str(out), num_shards={"train": 2}, max_bad_records=ALLOWED, run_id="fuzz"
            )
            scanned = convert_in_process(job)
        except InfeedError as e:
            return Ended(refused=str(e))
    written = sum(entry.num_records for entry in read_manifest(str(out)).splits.values())
    return Ended("", scanned, written, len(ledger(out)))
