"""Conversions of invented records: their references come from arithmetic and no payload is read or written, so that
what remains is what a conversion holds and does per record.

    python tests/scale/invented.py PLACE --records 10000000

prints the bytes that a fresh process held at its peak beyond those at its start, and seconds. PLACE: one of PLACES."""

import argparse
import base64
import pickle
import re
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from beam_jobs import stages
from beam_jobs.converter import ConversionJob, Source
from beam_jobs.rows.digests import BucketSums, hash_sum
from beam_jobs.rows.packed_rows import ROW, PackedFile, PackedRows, trailer_type
from beam_jobs.rows.references import File, References
from beam_jobs.split.commit import commit_split
from beam_jobs.split.copies import Counted
from beam_jobs.split.gather import rows_of_shard
from beam_jobs.split.ledger import Receipt, SourceSummary, Written
from beam_jobs.split.plan import SplitPlan
from beam_jobs.split.shard_rows import RAW_ROW
from converters.table.row_converter import RowConverter
from pipeline.shards.frames import FRAME_BYTES
from pipeline.shards.schema import Schema
from pipeline.storage.storage import Stat

RECORD_BYTES = 1000
AT_ONCE = 1 << 16
SHARD_RECORDS = 10**5  # of shards of 100 MB
PACKED_AT_ONCE = 10**6  # rows of a packed file in a bucket


@dataclass(frozen=True)
class Invented:
    """A converter of records that are nowhere."""

    name = "invented"
    schema = Schema("invented", {})
    labels = None
    transforms = False
    worker_files = ()

    def __reduce__(self):
        return _invented, ()

    def core_seconds_per_gb(self, _name):
        return 1

    def digest_fields(self):
        return {"converter": "invented/1"}

    def scan(self, _storage, source):
        count = source.bytes // RECORD_BYTES
        for begin in range(0, count, AT_ONCE):
            numbers = np.arange(begin, min(begin + AT_ONCE, count))
            yield References.in_file(
                source.file,
                key=np.char.add(f"{source.uri}-".encode(), np.char.zfill(numbers.astype("S"), 12)),
                offset=numbers * RECORD_BYTES,
                size=np.full(len(numbers), RECORD_BYTES),
                error=np.zeros(len(numbers), "S1"),
            )

    def record_bytes(self, refs):
        return refs.size

    def convert(self, ref, data):
        raise NotImplementedError


def _invented():
    """In each process of a conversion: nothing is written there."""
    stages.write_shard = write_nothing
    return Invented()


def job_of(records, out, num_sources=10):
    """A conversion of so many records."""
    size = records // num_sources * RECORD_BYTES
    sources = (Source("train", f"{n}", Stat(size), 0, size) for n in range(num_sources))
    return ConversionJob(Invented(), tuple(sources), str(out))


def receipt_of(plan, shard, raw):
    """Of a shard that has these RAW_ROWs, all of them good; and the shard, which is sparse."""
    count = len(raw)
    index = np.full((count, 2), RECORD_BYTES, "<u4")
    receipt = Receipt(
        plan=plan.digest,
        split=plan.split,
        shard=shard,
        num_shards=plan.num_shards,
        records=count,
        bytes=count * (RECORD_BYTES + FRAME_BYTES),
        crc32c=shard,
        key_digest=f"{0:032x}",
        handled_digest=f"{hash_sum(raw['rank']):032x}",
        index=base64.b64encode(index.tobytes()).decode(),
        fixups={},
        rejected=(),
        notes={},
        totals={},
        columns={},
        raw=base64.b64encode(raw.tobytes()).decode(),
        raw_checksum=plan.raw_checksum,
        content=base64.b64encode(raw["rank"].tobytes()).decode(),
    )
    receipt.write(plan.job)
    with Path(plan.job.path(plan.shard_file(shard))).open("wb") as file:
        file.truncate(receipt.bytes)
    return receipt


def write_nothing(plan, shard, rows):
    """In place of write_shard."""
    return receipt_of(plan, shard, rows_of_shard(plan, rows).raw_rows()), False


class Pickled:
    """The values of a key, as a runner has them: each iteration reads them anew."""

    def __init__(self, values):
        self._values = [pickle.dumps(value, pickle.HIGHEST_PROTOCOL) for value in values]

    def __iter__(self):
        return map(pickle.loads, self._values)


def ranks(number, count, begin=0, end=2**64 - 1):
    """Random ranks, sorted."""
    return np.sort(np.random.default_rng(number).integers(begin, end, count, np.uint64))


def packed_bucket(records, out):
    """assign, of the rows of packed files: a csv of a column has 130 million in a bucket."""
    source = Source("train", "0", Stat(records * 30), 0, records * 30)
    job = ConversionJob(RowConverter(()), (source,), str(out))
    size = 2**64 // job.num_buckets
    file = PackedFile(File("packed", Stat(1)), ("0", 0, None, 0), trailer_type([]))

    def rows(number):
        found = np.zeros(min(records, PACKED_AT_ONCE), ROW)
        found["rank"] = ranks(number, len(found), size, 2 * size)
        found["size"], found["more"] = 100, 40
        found["begin"] = 140 * np.arange(len(found))
        return PackedRows((file,), found)

    values = Pickled(map(rows, range(records // PACKED_AT_ONCE)))
    plan = SplitPlan(job, "train", {1: BucketSums(116 * records, records)})
    return lambda: sum(len(rows) for _, rows in plan.assign(1, values))


def bucket(records, out):
    """assign, of references: of digits, 5 million are in a bucket."""
    job = job_of(records, out, 1)
    values = Pickled(Invented().scan(None, job.sources[0]))
    plan = SplitPlan(job, "train", {0: BucketSums(1016 * records, records)})
    vars(job)["num_buckets"] = 1
    return lambda: sum(len(rows) for _, rows in plan.assign(0, values))


def commit(records, out):
    """commit, of shards that are written."""
    job = job_of(records, out)
    raw = [ranks(shard, SHARD_RECORDS) for shard in range(records // SHARD_RECORDS)]
    digest = sum(map(hash_sum, raw)) % 2**128
    sums = {0: BucketSums(records * (RECORD_BYTES + FRAME_BYTES), records, 0, digest)}
    plan = SplitPlan(job, "train", sums)
    plan = SplitPlan(
        ConversionJob(Invented(), job.sources, str(out), num_shards={"train": len(raw)}),
        "train",
        sums,
    )
    written = []
    for shard, rank in enumerate(raw):
        rows = np.zeros(len(rank), RAW_ROW)
        rows["rank"] = rank
        written.append(Written.of(receipt_of(plan, shard, rows), reused=False))
    parts = [records // len(job.sources)] * len(job.sources)
    summaries = [SourceSummary(n, None, count, digest * (n == 0)) for n, count in enumerate(parts)]

    def run():
        from beam_jobs.split.claims import claim

        claim(plan)
        return commit_split(plan, summaries, written, Counted()).ok * records

    del raw
    return run


def whole(runner):
    """A conversion from its first stage to its last."""

    def prepared(records, out):
        from beam_jobs.launch import launch
        from converters.command_line import beam_options
        from pipeline.console.console import Console

        args = argparse.Namespace(runner=runner, local_processes=1)
        job = job_of(records, out)
        options = beam_options(args, [])

        def run():
            launch(job, options, Console(quiet=True))
            return records

        return run

    return prepared


PLACES = {
    "packed bucket": packed_bucket,
    "bucket": bucket,
    "commit": commit,
    "local": whole("local"),
    "dask": whole("dask"),
}


def held(field):
    """Bytes of this process: VmRSS, or its maximum VmHWM."""
    return int(re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("place", choices=PLACES)
    parser.add_argument("--records", type=int, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        run = PLACES[options.place](options.records, Path(directory) / "out")
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM from here on
        before, begun = held("VmRSS"), time.monotonic()
        assert run() == options.records
        print(held("VmHWM") - before, round(time.monotonic() - begun, 1))


if __name__ == "__main__":
    main()
