"""Columnar batches of references."""

import dataclasses
import itertools
import pickle
import tracemalloc
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep import examples

from beam_jobs.converter import ConversionJob, Source, group_of
from beam_jobs.rows.digests import BucketSums, add_sums, row_hashes
from beam_jobs.rows.references import File, Reference, References, concat, in_order
from beam_jobs.split import plan as planning
from beam_jobs.split.plan import SplitPlan, bucket_sums, by_bucket, framed_bytes
from pipeline.shards.naming import ranks
from pipeline.shards.schema import Schema
from pipeline.storage.storage import Stat

NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12
) | st.just("odd \udcff byte")
ROWS = st.lists(
    st.builds(
        Reference,
        key=NAMES,
        file=st.sampled_from(
            [File("a.tar", Stat(10)), File("b.tar", Stat(20)), File("a.tar", Stat(10, 3))]
        ),
        offset=st.integers(0, 2**62),
        size=st.integers(0, 2**40),
        error=st.sampled_from(["", "bad"]),
        columns=st.fixed_dictionaries(
            {"label": st.integers(0, 1000), "synset": st.sampled_from([b"", b"n01", b"n0123"])}
        ),
    ),
    max_size=12,
)


@settings(max_examples=examples(30), deadline=None)
@given(ROWS)
def test_a_batch_returns_its_rows_after_pickling(rows):
    assert list(pickle.loads(pickle.dumps(References.of(rows)))) == rows


@settings(max_examples=examples(30), deadline=None)
@given(ROWS, st.integers(0, 12))
def test_concatenated_pieces_have_the_rows_of_the_original(rows, cut):
    whole = concat([References.of(rows[:cut]), References.of([]), References.of(rows[cut:])])
    assert list(whole) == rows


@settings(max_examples=examples(30), deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_taking_rows_keeps_only_the_files_they_need(rows, random):
    numbers = [i for i in range(len(rows)) if random.random() < 0.5]
    taken = References.of(rows).take(np.array(numbers, int))
    assert list(taken) == [rows[i] for i in numbers]
    assert set(taken.files) == {rows[i].file for i in numbers}


def test_hashes_depend_on_everything_but_file_and_offset():
    row = Reference("k", File("a", Stat(1)), 5, 7, "", {"label": 3})

    def values(**changes):
        refs = References.of([dataclasses.replace(row, **changes)])
        return row_hashes(refs.ranks(0, "train"), refs.decisive).tolist()

    assert values() == values(file=File("b", Stat(2))) == values(offset=6)
    others = [
        values(),
        values(key="j"),
        values(size=8),
        values(error="x"),
        values(columns={"label": 4}),
    ]
    assert all(a != b for i, a in enumerate(others) for b in others[:i])


@pytest.mark.parametrize("letter", ["x", "ä", "\udcff"])
def test_a_row_with_a_huge_name_is_rejected_under_a_short_one_and_makes_no_other_row_wide(letter):
    rows = [
        Reference(name, File("a", Stat(1)), 0, 1, "", {})
        for name in ("k", letter * 99_999, letter * 99_998)
    ]
    refs = References.of([*rows, dataclasses.replace(rows[0], error=f"no label {letter * 99_999}")])
    assert max(refs.key.itemsize, refs.error.itemsize) < 1100
    good, first, second, told = refs
    assert good == rows[0]
    assert first.key != second.key
    size = 99_999 * (2 if letter == "ä" else 1)
    assert first.error == f"a name of {size:,} bytes; allowed are up to 4,096"
    assert told.error == f"no label {letter * 247}..."


def test_the_longest_name_that_storages_allow_is_kept():
    row = Reference("ä" * 2048, File("a", Stat(1)), 0, 1, "", {})
    assert list(References.of([row])) == [row]


@pytest.mark.slow
def test_going_through_the_rows_of_a_large_shard_takes_little_memory_besides_them():
    rows = 50_000
    numbers = np.arange(rows)
    keys = np.char.mod("train-00000-of-00001:%d", numbers).astype("S")
    refs = References(
        (File("a", Stat(1)),),
        keys,
        np.zeros(rows, np.int32),
        numbers,
        numbers,
        np.zeros(rows, "S1"),
        {"label": numbers},
    )
    tracemalloc.start()
    try:
        assert sum(ref.columns["label"] for ref in refs) == numbers.sum()
        assert tracemalloc.get_traced_memory()[1] < 1_000_000  # lists of all cells: 10 MB
    finally:
        tracemalloc.stop()


@dataclass(frozen=True)
class Sized:
    """A converter of which planning needs nothing but sizes."""

    version: int = 1
    name = "sized"
    schema = Schema("s", {})
    labels = None
    transforms = False
    worker_files = ()

    def core_seconds_per_gb(self, name):
        return 0

    def digest_fields(self):
        return {"version": self.version}

    def record_bytes(self, refs):
        return refs.size


def make_job(**changes):
    sources = (Source("train", "a.tar", Stat(100), 0, 100),)
    return ConversionJob(Sized(), sources, "out", **{"target_shard_bytes": 4000, **changes})


def make_refs(sizes, error=()):
    rows = [
        Reference(f"key {i}", File("a.tar", Stat(100)), i, n, "bad" if i in error else "", {})
        for i, n in enumerate(sizes)
    ]
    return References.of(rows)


def plan_of(job, *batches):
    """A plan and its pieces by bucket, from batches as a scan would give them."""
    pieces, sums = {}, {}
    for refs in batches:
        for bucket, piece in by_bucket(job, "train", refs):
            pieces.setdefault(bucket, []).append(piece)
            sums[bucket] = add_sums(
                [sums.get(bucket, BucketSums()), bucket_sums(job, "train", piece)]
            )
    return SplitPlan(job, "train", sums), pieces


def shards_of(plan, pieces):
    shards = {}
    for bucket, batch in pieces.items():
        for shard, refs in plan.assign(bucket, batch):
            shards.setdefault(shard, []).append(refs)
    return {shard: sorted(row.key for row in concat(batch)) for shard, batch in shards.items()}


def by_the_formula(job, refs):
    """floor((bytes before + half its own) * shards / all bytes) over all records in rank order, one at a time."""
    rank = ranks(job.seed, "train", refs.key.tolist())
    order = sorted(range(len(refs)), key=lambda i: (rank[i], refs.key[i]))
    sizes = framed_bytes(job, refs)
    total, before, shards = int(sizes.sum()), 0, {}
    num_shards = job.num_shards.get("train") or max(1, round(total / job.target_shard_bytes))
    for i in order:
        n = int(sizes[i])
        shard = min(num_shards - 1, (2 * before + n) * num_shards // (2 * total)) if total else 0
        shards.setdefault(shard, []).append(refs.key[i].decode())
        before += n
    return {shard: sorted(keys) for shard, keys in shards.items()}


SIZES = st.lists(st.integers(0, 3000), min_size=1, max_size=60)


@settings(max_examples=examples(30), deadline=None)
@given(SIZES, st.sets(st.integers(0, 59), max_size=5), st.none() | st.integers(1, 9))
def test_the_assignment_by_buckets_is_the_formula_over_the_whole_list(sizes, error, num_shards):
    job = make_job(num_shards={"train": num_shards} if num_shards else {})
    refs = make_refs(sizes, error)
    assert shards_of(*plan_of(job, refs)) == by_the_formula(job, refs)


@settings(max_examples=examples(30), deadline=None)
@given(SIZES, st.randoms(use_true_random=False))
def test_plan_and_shards_do_not_depend_on_how_the_scan_was_cut_or_ordered(sizes, random):
    job, refs = make_job(), make_refs(sizes)
    numbers = list(range(len(refs)))
    random.shuffle(numbers)
    cut = random.randrange(len(numbers) + 1)
    batches = [refs.take(np.array(part, int)) for part in (numbers[:cut], numbers[cut:]) if part]
    one, other = plan_of(job, refs), plan_of(job, *batches)
    assert one[0].digest == other[0].digest
    assert shards_of(*one) == shards_of(*other)


@settings(max_examples=examples(30), deadline=None)
@given(st.sampled_from([10**8, 10**9]), st.integers(1, 10**6))
def test_sums_of_a_hundred_terabytes_are_exact(record, shards):
    job = make_job(num_shards={"train": shards})
    total = 10**14
    sums = {0: BucketSums(total - 16 - record, 1), 7: BucketSums(record + 16, 1)}
    refs = make_refs([record])
    ((shard, _),) = SplitPlan(job, "train", sums).assign(7, [refs])
    assert shard == (2 * total - record - 16) * shards // (2 * total)


def test_the_number_of_buckets_changes_no_shard_and_no_digest():
    refs = make_refs(range(200))
    small = make_job()
    large = dataclasses.replace(small, sources=(Source("train", "a.tar", Stat(100), 0, 10**12),))
    assert large.num_buckets == 256 > small.num_buckets == 8
    assert shards_of(*plan_of(small, refs)) == shards_of(*plan_of(large, refs))


@pytest.mark.parametrize("rows_at_once", [1, 7, 150])
def test_large_buckets_are_planned_in_parts_that_change_no_shard(monkeypatch, rows_at_once):
    plan, pieces = plan_of(make_job(), make_refs([*range(200), *range(20)]))
    usual = shards_of(plan, pieces)
    monkeypatch.setattr(planning, "_ROWS_AT_ONCE", rows_at_once)
    assert shards_of(plan, pieces) == usual


def test_the_first_of_duplicate_keys_is_kept_and_the_others_are_rejected():
    rows = [
        Reference("same", File(uri, Stat(9)), 0, 10, "", {}) for uri in ("b.tar", "a.tar", "c.tar")
    ]
    plan, pieces = plan_of(make_job(), References.of(rows))
    ((_, refs),) = [
        found for bucket, batch in pieces.items() for found in plan.assign(bucket, batch)
    ]
    assert [(row.file.uri, bool(row.error)) for row in refs] == [
        ("a.tar", False),
        ("b.tar", True),
        ("c.tar", True),
    ]
    assert "duplicate key" in next(row.error for row in refs if row.error)


def test_which_duplicate_is_kept_does_not_depend_on_the_order_of_rows():
    file = File("a.jpg", Stat(9))
    rows = [
        Reference("same", file, 0, 10, "", {"label": label, "name": name})
        for label in (3, 1, 2)
        for name in b"ba"
    ]
    rows = [
        dataclasses.replace(row, columns={**row.columns, "name": bytes([row.columns["name"]])})
        for row in rows
    ]
    kept = set()
    for order in itertools.permutations(rows, len(rows)):
        (first, *_) = in_order(0, "train", References.of(order))
        kept.add(tuple(first.columns.values()))
    assert len(kept) == 1


def test_the_digest_covers_what_decides_bytes_and_nothing_else():
    refs = make_refs([10, 20, 30])

    def digest(refs=refs, **changes):
        return plan_of(make_job(**changes), refs)[0].digest

    other = References.of([dataclasses.replace(row, size=row.size + 1) for row in refs])
    moved = References.of(
        [dataclasses.replace(row, offset=99, file=File("z.tar", Stat(5, 7))) for row in refs]
    )
    different = [
        digest(),
        digest(seed=1),
        digest(num_shards={"train": 2}),
        digest(other),
        digest(make_refs([10, 20])),
    ]
    different.append(
        plan_of(dataclasses.replace(make_job(), converter=Sized(version=2)), refs)[0].digest
    )
    assert len(set(different)) == len(different)
    assert digest() == digest(moved)
    assert digest() == digest(run_id="x", max_bad_records=5, target_shard_bytes=4001)


def test_the_raw_checksum_depends_on_every_file_and_is_none_without_checksums():
    def checksum(*crcs):
        files = [File(f"{i}.JPEG", Stat(9, crc)) for i, crc in enumerate(crcs)]
        rows = [
            dataclasses.replace(row, file=file)
            for row, file in zip(make_refs([9, 9]), files, strict=True)
        ]
        return plan_of(make_job(), References.of(rows))[0].raw_checksum

    assert (
        len({checksum(1, 2), checksum(2, 1), checksum(1, 3), checksum(None, 2), checksum(1, None)})
        == 5
    )
    assert checksum(None, None) is None


def test_sums_add_up_in_any_grouping():
    refs = make_refs(range(50))
    parts = [refs.take(np.arange(i, 50, 7)) for i in range(7)]
    job = make_job()
    assert add_sums(bucket_sums(job, "train", part) for part in parts) == bucket_sums(
        job, "train", refs
    )


@pytest.mark.parametrize(
    ("count", "name"), [(1, "dir/0"), (2, "one of 2 files starting with dir/0")]
)
def test_a_group_of_small_files_is_named_by_its_first_and_their_number(count, name):
    files = [File(f"dir/{number}", Stat(7)) for number in range(count)]
    assert Source("train", files[0].uri, files[0].stat, group=group_of(files)).name == name
