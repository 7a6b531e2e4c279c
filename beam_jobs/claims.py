"""Claims: the plan that owns a split of an output directory. Nothing is written before the claim.

The same plan resumes. Another plan is refused or, with --overwrite, replaces exactly what the
claimed plan wrote. A new split needs the schema, labels and files of those that are there."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated

from msgspec import Meta

from beam_jobs.converter import ConversionJob, Packer
from beam_jobs.ledger import parse_receipt
from beam_jobs.plan import SplitPlan
from beam_jobs.raw_rows import first_change
from pipeline.errors import ConversionError
from pipeline.shards import naming
from pipeline.shards.manifest import Manifest, find_manifest, update_manifest
from pipeline.shards.schema import ShardFiles
from pipeline.shards.sidecars import sidecar_names, write_sidecars
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed_line
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, in_parallel, join, write_file

_MEND = (
    "It is damaged, and no intact file shows that these shards belong to this command. Repeat the "
    "options that started this conversion, which rebuilds the file; or remove the split's shards "
    "and their receipts in _shards yourself, or give another directory."
)


@dataclass(frozen=True)
class Claim:
    """The plan that owns a split, with enough detail to name every file it writes."""

    plan: str  # digest
    num_shards: Annotated[int, Meta(ge=1, le=10**7)]
    records: Count
    bytes: Count
    seed: int
    raw_checksum: str | None  # see SplitPlan. Not in the digest: it differs for a copy on a disk
    files: ShardFiles  # see Schema
    sources: Mapping[str, str]  # size and version by name; not of folders

    @staticmethod
    def of(plan: SplitPlan) -> "Claim":
        """The claim that a plan makes."""
        total = plan.total
        job = plan.job
        files = (
            source
            for source in job.sources_of(plan.split)
            if source.kind not in ("folder", "group")
        )
        return Claim(
            plan=plan.digest,
            num_shards=plan.num_shards,
            records=total.records,
            bytes=total.bytes,
            seed=job.seed,
            raw_checksum=plan.raw_checksum,
            files=job.converter.schema.files,
            sources={
                file.origin or file.uri: f"{file.stat.bytes} {file.stat.version}" for file in files
            },
        )

    def __str__(self) -> str:
        return f"{self.plan} ({self.num_shards} shards, {self.records} records, seed {self.seed})"


def check_claim(storage: Storage, plan: SplitPlan) -> None:
    """Raises ConversionError if another plan owns the split and may not be overwritten. Claims
    nothing.

    Renews the claim of the same plan, if the raw data have changed where that does not matter."""
    job = plan.job
    mine = Claim.of(plan)
    check_mergeable(find_manifest(job.output_dir, storage), job)
    if not storage.exists(claim_path(plan)):
        _check_vacant(storage, plan)
        return
    there = _read(storage, claim_path(plan), plan)
    if _is_same(plan, there):
        _resume(storage, plan, there)
    elif not job.overwrite:
        change = _changed_source(there, mine) or first_change(
            storage, plan, there.plan, there.num_shards, there.seed
        )
        change = (
            f"In the raw data, {change}"
            if change
            else "Raw data, label files, options or infeed's version differ"
        )
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of another plan: {there}; this one is "
            f"{mine}. {change}. Replace the split with --overwrite, give another directory, or "
            "repeat the old plan's options and data."
        )


def claim(storage: Storage, plan: SplitPlan) -> None:
    """Claims the split for this plan, after check_claim of all splits of its job. Raises like
    that."""
    path = claim_path(plan)
    mine = Claim.of(plan)
    if storage.create(path, sealed_line(dataclasses.asdict(mine))):
        return
    check_claim(storage, plan)  # another plan may have come first
    if not _is_same(plan, there := _read(storage, path, plan)):
        _remove_split(storage, plan.job.output_dir, plan.split, there)
        _publish(storage, path, mine)


def _is_same(plan: SplitPlan, there: Claim) -> bool:
    same_raw = (
        None in (there.raw_checksum, plan.raw_checksum) or there.raw_checksum == plan.raw_checksum
    )
    return there.plan == plan.digest and (same_raw or not plan.job.overwrite)


def claim_path(plan: SplitPlan) -> str:
    """The file of the plan's claim."""
    return join(plan.job.output_dir, naming.plan_file(plan.split))


def _resume(storage: Storage, plan: SplitPlan, there: Claim) -> None:
    """Renews the claim of the same plan if no finished shard is affected by changes to the raw data
    since then.

    With --verify-existing the bytes decide, so the commit renews the claim (see write)."""
    job = plan.job
    mine = Claim.of(plan)
    if there.raw_checksum == mine.raw_checksum or job.verify_existing:
        return
    if change := first_change(storage, plan, there.plan, there.num_shards, there.seed):
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of other raw data: {change} since its "
            "shards were written. Restore the old data, let --verify-existing compare the bytes (a "
            "copy has the same), give another directory, or replace the split with --overwrite."
        )
    _publish(storage, claim_path(plan), mine)


def check_mergeable(there: Manifest | None, job: ConversionJob) -> None:
    """Raises ConversionError if splits that remain in the manifest have another name, schema,
    labels or files."""
    stay = sorted(set(there.splits) - set(job.splits)) if there else ()
    if there is None or not stay:
        return
    converter = job.converter
    if (there.name, there.schema, there.labels) != (
        converter.name,
        converter.schema,
        converter.labels,
    ):
        raise ConversionError(
            f"{job.output_dir} holds {', '.join(stay)} of dataset {there.name!r}, schema "
            f"{there.schema.name!r}; its features or labels are not those of {converter.name!r}, "
            f"schema {converter.schema.name!r}. Give another directory, or convert all splits "
            "again with --overwrite."
        )
    storage = open_storage(job.output_dir)
    files = converter.files() if isinstance(converter, Packer) else {}
    paths = {join(job.output_dir, name): content for name, content in files.items()}
    if others := [
        path
        for path, content in paths.items()
        if storage.exists(path) and storage.read(path) != content
    ]:
        raise ConversionError(
            f"{', '.join(stay)} of {job.output_dir} was converted with other options: {others[0]} "
            "is not what these would write. Repeat the old options, give another directory, or "
            "convert all splits again with --overwrite."
        )


def renew_claim(storage: Storage, plan: SplitPlan) -> None:
    """Updates the claim, once all shards are proven to match the current raw data."""
    path = claim_path(plan)
    mine = Claim.of(plan)
    if _read(storage, path, plan).raw_checksum != mine.raw_checksum:
        _publish(storage, path, mine)


def _changed_source(there: Claim, mine: Claim) -> str:
    """Describes the first raw file that differs between the claims; "" if none of their common
    files does."""
    changed = (
        name
        for name, version in mine.sources.items()
        if there.sources.get(name, version) != version
    )
    return next((f"{name} has changed" for name in changed), "")


def _publish(storage: Storage, path: str, mine: Claim) -> None:
    write_file(storage, path, sealed_line(dataclasses.asdict(mine)))


def _check_vacant(storage: Storage, plan: SplitPlan) -> None:
    """Raises ConversionError if a split of this name exists without a claim, so something else
    wrote it."""
    output_dir = plan.job.output_dir
    split = plan.split
    shards = naming.shard_files(split, None, plan.job.converter.schema.files)
    found = [name for name in _names(storage, output_dir) if fnmatchcase(name, shards)]
    manifest = find_manifest(output_dir, storage)
    if not found and not (manifest and split in manifest.splits):
        _check_free(storage, plan)
    # or a concurrent worker has just claimed it
    elif not storage.exists(join(output_dir, naming.plan_file(split))):
        what = (
            f"{found[0]} ({len(found)} such files in total)"
            if found
            else "a manifest that lists it"
        )
        raise ConversionError(
            f"{output_dir} already holds split {split!r}, which no conversion into this directory "
            f"wrote: found {what}. Give another directory, or remove the files yourself: "
            "--overwrite replaces only what a conversion wrote."
        )


def _check_free(storage: Storage, plan: SplitPlan) -> None:
    """Raises ConversionError if something else has a name that the commit needs. All conversions
    into this directory share the files for TFDS, so only the first one can find somebody else's."""
    output_dir = plan.job.output_dir
    converter = plan.job.converter
    names = [
        naming.index_file(plan.split),
        naming.rejects_file(plan.split),
        naming.summary_file(plan.split),
    ]
    if not any(
        fnmatchcase(name, "*.plan.json") for name in storage.list(join(output_dir, "_shards"))
    ):
        names += sidecar_names(converter.schema, converter.labels)
        names += converter.files() if isinstance(converter, Packer) else ()
    folders = {name: name.rpartition("/")[0] for name in names}
    there = {folder: _names(storage, join(output_dir, folder)) for folder in set(folders.values())}
    if taken := [
        name for name, folder in folders.items() if name.rpartition("/")[2] in there[folder]
    ]:
        raise ConversionError(
            f"{output_dir} has {taken[0]}, which no conversion into this directory wrote, and "
            "which this one would replace. Give another directory, or move it."
        )


def _names(storage: Storage, directory: str) -> list[str]:
    """The names of everything in a directory, also of links that lead nowhere."""
    files, directories = storage.entries(directory)
    return sorted([*files, *directories])


def read_claim(storage: Storage, path: str) -> Claim:
    """Raises ConversionError if the claim is damaged."""
    return read_sealed(JsonFile(path, ConversionError, _MEND), storage.read(path), Claim)


def _read(storage: Storage, path: str, plan: SplitPlan) -> Claim:
    try:
        return read_claim(storage, path)
    except ConversionError:
        agreed = _agreed(storage, plan)
        if agreed is None:
            raise
        _publish(storage, path, agreed)
        return agreed


def _agreed(storage: Storage, plan: SplitPlan) -> Claim | None:
    """This plan's claim if intact receipts and the manifest agree that it owns the split, or if
    nothing was written."""
    output_dir = plan.job.output_dir
    split = plan.split
    receipts = f"{naming.shard_files(split, None)}.json"
    names = [
        name for name in storage.list(join(output_dir, "_shards")) if fnmatchcase(name, receipts)
    ]
    found = in_parallel(
        lambda name: parse_receipt(storage.read(join(output_dir, f"_shards/{name}"))), names
    )
    intact = [receipt for receipt in found if receipt]
    plans = {receipt.plan for receipt in intact}
    manifest = find_manifest(output_dir, storage)
    if manifest and split in manifest.splits:
        plans.add(manifest.splits[split].plan_digest)
    shards = naming.shard_files(split, None, plan.job.converter.schema.files)
    vacant = not names and not any(fnmatchcase(name, shards) for name in storage.list(output_dir))
    if plans != {plan.digest} and not (vacant and not plans):
        return None
    raw = {receipt.raw_checksum for receipt in intact}
    return dataclasses.replace(Claim.of(plan), raw_checksum=raw.pop() if len(raw) == 1 else None)


def _remove_split(storage: Storage, output_dir: str, split: str, old: Claim) -> None:
    """Removes the split from the manifest and sidecars, then exactly the old plan's files.
    Idempotent."""
    if manifest := find_manifest(output_dir, storage):
        if set(manifest.splits) - {split}:
            update_manifest(
                storage, output_dir, lambda there: _without(storage, there or manifest, split)
            )
        else:
            storage.delete(join(output_dir, naming.MANIFEST_FILE))
            for name in sidecar_names(manifest.schema, manifest.labels):
                storage.delete(join(output_dir, name))
    # Receipts before shards: a receipt states that its shard exists.
    numbers = range(old.num_shards)
    receipts = [naming.receipt_file(split, shard, old.num_shards) for shard in numbers]
    shards = [naming.shard_file(split, shard, old.num_shards, old.files) for shard in numbers]
    for files in (receipts, shards):
        in_parallel(storage.delete, [join(output_dir, file) for file in files])
    for file in (naming.index_file(split), naming.rejects_file(split), naming.summary_file(split)):
        storage.delete(join(output_dir, file))


def _without(storage: Storage, manifest: Manifest, split: str) -> Manifest:
    rest = {name: entry for name, entry in manifest.splits.items() if name != split}
    left = dataclasses.replace(manifest, splits=rest)
    write_sidecars(storage, manifest.directory, left)
    return left
