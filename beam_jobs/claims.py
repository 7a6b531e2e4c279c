"""Claims: which plan a split of a directory is being, or was, filled with. Nothing is written before the claim.

The same plan goes on; another one is refused, or with --overwrite replaces exactly what the claimed one wrote."""

import dataclasses
import json
from dataclasses import dataclass
from fnmatch import fnmatchcase

from beam_jobs.job import Job
from beam_jobs.plan import SplitPlan
from pipeline.shards.errors import ConversionError
from pipeline.shards.manifest import Manifest, read_manifest, update_manifest
from pipeline.shards.naming import (
    MANIFEST_FILE,
    index_file,
    plan_file,
    receipt_file,
    rejects_file,
    shard_file,
    shard_files,
    summary_file,
)
from pipeline.shards.schema import SHARD_FILES
from pipeline.shards.sidecars import remove_sidecars, write_sidecars
from pipeline.shards.storage import Storage, in_parallel, join

__all__ = ["Claim", "check_mergeable", "claim"]


@dataclass(frozen=True)
class Claim:
    """The plan that a split belongs to, and enough of it to name every file that it writes."""

    plan: str  # digest
    num_shards: int
    records: int
    bytes: int
    seed: int
    raw_checksum: str | None = None  # of the raw files. Here and not in the plan: only gs:// has it
    files: str = SHARD_FILES  # see Schema

    @staticmethod
    def of(plan: SplitPlan) -> "Claim":
        """The claim of a plan."""
        total, job = plan.total, plan.job
        return Claim(
            plan=plan.digest,
            num_shards=plan.num_shards,
            records=total.records,
            bytes=total.bytes,
            seed=job.seed,
            raw_checksum=plan.raw_checksum,
            files=job.converter.schema.files,
        )

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    def of_same_raw_files(self, other: "Claim") -> bool:
        """Whether both can be of the same raw files: equal checksums where both have one."""
        return None in (self.raw_checksum, other.raw_checksum) or self.raw_checksum == other.raw_checksum

    def __str__(self) -> str:
        return f"{self.plan} ({self.num_shards} shards, {self.records} records, seed {self.seed})"


def claim(storage: Storage, plan: SplitPlan) -> None:
    """Marks the split as this plan's. Raises ConversionError if it is another's and may not be overwritten."""
    job, path, mine = plan.job, join(plan.job.output_dir, plan_file(plan.split)), Claim.of(plan)
    if storage.exists(join(job.output_dir, MANIFEST_FILE)):
        check_mergeable(read_manifest(job.output_dir, storage), job)
    if not storage.exists(path):
        _check_vacant(storage, plan)
    if storage.create(path, mine.to_json().encode()):
        return
    there = _read(storage, path)
    if there.plan == mine.plan and there.of_same_raw_files(mine):
        return
    if not job.overwrite and there.plan == mine.plan:
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of other raw data: since then a raw file was replaced by one "
            f"of the same size (checksum of all: {there.raw_checksum} then, {mine.raw_checksum} now). Put it back, "
            "give another directory, or replace the split with --overwrite."
        )
    if not job.overwrite:
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of another plan: {there}; this one is {mine}. The raw data, "
            "label files, seed, shard size or --verify differ. Repeat the old options, give another directory, or "
            "replace the split with --overwrite."
        )
    _remove_split(storage, job.output_dir, plan.split, there)
    with storage.publish(path) as sink:
        sink.write(mine.to_json().encode())


def _check_vacant(storage: Storage, plan: SplitPlan) -> None:
    """Raises ConversionError where a split of this name is there that no claim is for: it is somebody else's."""
    output_dir, split = plan.job.output_dir, plan.split
    shards = shard_files(split, None, plan.job.converter.schema.files)
    found = [name for name in sorted(storage.list(output_dir)) if fnmatchcase(name, shards)]
    indexed = storage.exists(join(output_dir, MANIFEST_FILE)) and split in read_manifest(output_dir, storage).splits
    if not found and not indexed:
        return
    if storage.exists(join(output_dir, plan_file(split))):  # a twin was first
        return
    what = f"{found[0]} and {len(found)} such files in all" if found else "a manifest that lists it"
    raise ConversionError(
        f"{output_dir} holds split {split!r} already, and no conversion into this directory wrote it: there is {what}. "
        "Give another directory, or remove them yourself: --overwrite replaces only what a conversion wrote."
    )


def check_mergeable(there: Manifest | None, job: Job) -> None:
    """Raises ConversionError when splits that stay in the manifest have another schema or other labels."""
    if there is None:
        return
    converter = job.converter
    stay = sorted(set(there.splits) - set(job.splits))
    same = (there.name, there.schema, there.labels) == (converter.name, converter.schema, converter.labels)
    if stay and not same:
        raise ConversionError(
            f"{job.output_dir} holds {', '.join(stay)} of dataset {there.name!r}, schema {there.schema.name!r}: not "
            f"the features and labels of {converter.name!r}, schema {converter.schema.name!r}. Give another directory, "
            "or convert all splits again with --overwrite."
        )


def _read(storage: Storage, path: str) -> Claim:
    try:
        return Claim(**json.loads(storage.read(path)))
    except (ValueError, TypeError) as e:
        raise ConversionError(
            f"{path} is damaged ({e}), so nobody knows whose files these are. Give another directory."
        ) from e


def _remove_split(storage: Storage, output_dir: str, split: str, old: Claim) -> None:
    """Removes the split from the manifest and sidecars, then exactly the files of the old plan. May be repeated."""
    if storage.exists(join(output_dir, MANIFEST_FILE)):
        manifest = read_manifest(output_dir, storage)
        if set(manifest.splits) - {split}:
            update_manifest(storage, output_dir, lambda there: _without(storage, there or manifest, split))
        else:
            storage.delete(join(output_dir, MANIFEST_FILE))
            remove_sidecars(storage, output_dir, manifest)
    # Receipts before shards: a receipt is the word that its shard is there.
    numbers = range(old.num_shards)
    receipts = [receipt_file(split, shard, old.num_shards) for shard in numbers]
    shards = [shard_file(split, shard, old.num_shards, old.files) for shard in numbers]
    for files in (receipts, shards):
        in_parallel(storage.delete, [join(output_dir, file) for file in files])
    for file in (index_file(split), rejects_file(split), summary_file(split)):
        storage.delete(join(output_dir, file))


def _without(storage: Storage, manifest: Manifest, split: str) -> Manifest:
    rest = {name: entry for name, entry in manifest.splits.items() if name != split}
    left = dataclasses.replace(manifest, splits=rest)
    write_sidecars(storage, manifest.directory, left)
    return left
