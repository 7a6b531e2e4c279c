"""Claims: the plan that owns a split of an output directory. Nothing is written before the claim.

The same plan resumes. Another plan is refused or, with --overwrite, replaces exactly what the
claimed plan wrote. A new split needs the schema, labels and files of the finished splits."""

import dataclasses
import fnmatch
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from msgspec import Meta

from beam_jobs.converter import ConversionJob
from beam_jobs.split.ledger import parse_receipt, receipts_of
from beam_jobs.split.packed_files import scanned
from beam_jobs.split.plan import SplitPlan
from beam_jobs.split.shard_rows import (
    RAW_ROW,
    differing,
    name_of,
    raw_rows,
    recorded_rows,
)
from pipeline.errors import ConversionError
from pipeline.shards import naming
from pipeline.shards.manifest import Manifest, find_manifest, update_manifest
from pipeline.shards.schema import ShardFiles
from pipeline.shards.sidecars import sidecar_names, write_sidecars
from pipeline.shards.typed_json import Count, JsonFile, read_sealed, sealed_line
from pipeline.storage.storage import in_parallel, write_file

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
    settings: Mapping[str, str] = field(default_factory=dict)  # see SplitPlan

    @staticmethod
    def of(plan: SplitPlan) -> "Claim":
        """The claim that a plan makes."""
        job = plan.job
        return Claim(
            plan=plan.digest,
            num_shards=plan.num_shards,
            records=plan.total.records,
            bytes=plan.total.bytes,
            seed=job.seed,
            raw_checksum=plan.raw_checksum,
            files=job.converter.schema.files,
            sources={
                source.origin or source.uri: f"{source.stat.bytes} {source.stat.version}"
                for source in job.sources_of(plan.split)
                if source.kind not in ("folder", "group")
            },
            settings=plan.settings,
        )

    def __str__(self) -> str:
        return f"{self.plan} ({self.num_shards} shards, {self.records} records, seed {self.seed})"


def check_claim(plan: SplitPlan) -> None:
    """Raises ConversionError if another plan owns the split and may not be overwritten. Claims
    nothing.

    Renews the claim of the same plan if raw data have changed that no finished shard contains."""
    job = plan.job
    check_mergeable(find_manifest(job.output_dir, job.output), job)
    if not job.output.exists(_path(plan)):
        _check_vacant(plan)
        return
    old = _read(plan)
    if _is_same(plan, old):
        _resume(plan, old)
    elif not job.overwrite:
        new = Claim.of(plan)
        changed_sources = (
            f"{name} has changed"
            for name, version in new.sources.items()
            if old.sources.get(name, version) != version
        )
        change = next(changed_sources, "") or _first_change(plan, old)
        settings = [name for name, value in old.settings.items() if new.settings.get(name) != value]
        reason = (
            f"In the raw data, {change}"
            if change
            else f"What differs: {', '.join(settings) or 'data, options or the version of infeed'}"
        )
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of another plan: {old}; this one is "
            f"{new}. {reason}. Replace the split with --overwrite, give another directory, or "
            "repeat the old plan's options and data."
        )


def claim(plan: SplitPlan) -> None:
    """Claims the split for this plan, once check_claim has passed for all splits of the job. Raises
    the errors of check_claim."""
    new = Claim.of(plan)
    if plan.job.output.create(_path(plan), sealed_line(dataclasses.asdict(new))):
        return
    check_claim(plan)  # another plan may have come first
    old = _read(plan)
    if not _is_same(plan, old):
        _remove_split(plan.job, plan.split, old)
        _publish(plan, new)


def _is_same(plan: SplitPlan, old: Claim) -> bool:
    same_raw = (
        None in (old.raw_checksum, plan.raw_checksum) or old.raw_checksum == plan.raw_checksum
    )
    return old.plan == plan.digest and (same_raw or not plan.job.overwrite)


def _path(plan: SplitPlan) -> str:
    return plan.job.path(naming.plan_file(plan.split))


def _resume(plan: SplitPlan, old: Claim) -> None:
    """Renews the claim of the same plan if no finished shard is affected by changes to the raw data
    since then.

    With --verify-existing the bytes decide, so the commit renews the claim (see write_shard)."""
    job = plan.job
    if old.raw_checksum == plan.raw_checksum or job.verify_existing:
        return
    if change := _first_change(plan, old):
        raise ConversionError(
            f"{job.output_dir} holds split {plan.split!r} of other raw data: {change} since its "
            "shards were written. Restore the old data, let --verify-existing compare the bytes (a "
            "copy has the same), give another directory, or replace the split with --overwrite."
        )
    _publish(plan, Claim.of(plan))


def check_mergeable(manifest: Manifest | None, job: ConversionJob) -> None:
    """Raises ConversionError if splits that stay in the manifest have another name, schema, labels
    or files."""
    other_splits = sorted(set(manifest.splits) - set(job.splits)) if manifest else ()
    if manifest is None or not other_splits:
        return
    splits = ", ".join(other_splits)
    converter = job.converter
    if (manifest.name, manifest.schema, manifest.labels) != (
        converter.name,
        converter.schema,
        converter.labels,
    ):
        raise ConversionError(
            f"{job.output_dir} holds {splits} of dataset {manifest.name!r}, schema "
            f"{manifest.schema.name!r}; its features or labels are not those of "
            f"{converter.name!r}, schema {converter.schema.name!r}. Give another directory, or "
            "convert all splits again with --overwrite."
        )
    for name, content in job.files.items():
        path = job.path(name)
        if job.output.exists(path) and job.output.read(path) != content:
            raise ConversionError(
                f"{splits} of {job.output_dir} was converted with other options: {path} is not "
                "what these would write. Repeat the old options, give another directory, or "
                "convert all splits again with --overwrite."
            )


def renew_claim(plan: SplitPlan) -> None:
    """Updates the claim, once all shards are proven to match the current raw data."""
    if _read(plan).raw_checksum != plan.raw_checksum:
        _publish(plan, Claim.of(plan))


def _first_change(plan: SplitPlan, old: Claim) -> str:
    """Describes the first change to rows of an old plan's finished shards; "" if they match the
    current raw data.

    Scans the raw data again, in one process, so it runs only when a claim shows that something
    changed. If the plan differs, also reports a new file, or how many records are gone."""
    job = plan.job
    receipts = receipts_of(plan, old.num_shards)
    shards = [
        recorded_rows(receipt) for receipt in receipts if receipt and receipt.plan == old.plan
    ]
    known = np.sort(np.concatenate([np.zeros(0, RAW_ROW), *shards]), order="rank")
    if not len(known):
        return ""
    new_file = ""
    num_seen = 0
    of_old = dataclasses.replace(job, seed=old.seed, dry_run=True)
    scans = (scanned(of_old, source) for source in job.sources_of(plan.split))
    for rows in itertools.chain.from_iterable(scans):
        differ, unknown = differing(known, raw_rows(old.seed, plan.split, rows))
        if differ.any():
            return f"{name_of(job, rows, int(differ.argmax()))} has changed"
        if unknown.any():
            new_file = new_file or f"{name_of(job, rows, int(unknown.argmax()))} is new"
        num_seen += int((~unknown).sum())
    gone = len(known) - num_seen
    if plan.digest == old.plan or len(shards) < old.num_shards or not (new_file or gone > 0):
        return ""
    change = new_file or (f"{gone:,} of {len(known):,} records {'is' if gone == 1 else 'are'} gone")
    if getattr(job.converter, "held_out", None) is None:
        return change
    return (
        f"{change} {'in' if new_file else 'from'} this split, as with another --validation-fraction"
    )


def _publish(plan: SplitPlan, claim: Claim) -> None:
    write_file(plan.job.output, _path(plan), sealed_line(dataclasses.asdict(claim)))


def _check_vacant(plan: SplitPlan) -> None:
    """Raises ConversionError if a split of this name exists without a claim, so something else
    wrote it."""
    job = plan.job
    split = plan.split
    pattern = naming.shard_files(split, None, job.converter.schema.files)
    shards = fnmatch.filter(_names(job, ""), pattern)
    manifest = find_manifest(job.output_dir, job.output)
    if not shards and not (manifest and split in manifest.splits):
        _check_free(plan)
    # or a concurrent worker has just claimed it
    elif not job.output.exists(_path(plan)):
        what = (
            f"{shards[0]} ({len(shards)} such files in total)"
            if shards
            else "a manifest that lists it"
        )
        raise ConversionError(
            f"{job.output_dir} already holds split {split!r}, which no conversion into this "
            f"directory wrote: found {what}. Give another directory, or remove the files yourself: "
            "--overwrite replaces only what a conversion wrote."
        )


def _check_free(plan: SplitPlan) -> None:
    """Raises ConversionError if something else has a name that the commit needs. All conversions
    into this directory share the files for TFDS, so only the first one can find somebody else's."""
    job = plan.job
    names = [*_files_of(plan.split)]
    if not fnmatch.filter(job.output.list(job.path("_shards")), "*.plan.json"):
        names += [*sidecar_names(job.converter.schema, job.converter.labels), *job.files]
    folders = ("", "_index/", "_rejects/", "_summary/")
    existing = {name for folder in folders for name in _names(job, folder)}
    if taken := [name for name in names if name in existing]:
        raise ConversionError(
            f"{job.output_dir} has {taken[0]}, which no conversion into this directory wrote, and "
            "which this one would replace. Give another directory, or move it."
        )


def _names(job: ConversionJob, folder: str) -> list[str]:
    """The names of everything in a folder of the output, also of links that lead nowhere."""
    files, directories = job.output.entries(job.path(folder))
    return [f"{folder}{name}" for name in sorted([*files, *directories])]


def _files_of(split: str) -> Sequence[str]:
    """The files of a split besides its shards and receipts."""
    names = (naming.index_file, naming.parts_file, naming.rejects_file, naming.summary_file)
    return [name(split) for name in names]


def read_claim(job: ConversionJob, split: str) -> Claim:
    """The claim on a split. Raises ConversionError if it is damaged."""
    path = job.path(naming.plan_file(split))
    return read_sealed(JsonFile(path, ConversionError, _MEND), job.output.read(path), Claim)


def _read(plan: SplitPlan) -> Claim:
    try:
        return read_claim(plan.job, plan.split)
    except ConversionError:
        agreed = _agreed(plan)
        if agreed is None:
            raise
        _publish(plan, agreed)
        return agreed


def _agreed(plan: SplitPlan) -> Claim | None:
    """This plan's claim if intact receipts and the manifest agree that it owns the split, or if
    nothing was written."""
    job = plan.job
    listed = job.output.list(job.path("_shards"))
    names = fnmatch.filter(listed, f"{naming.shard_files(plan.split, None)}.json")
    receipts = in_parallel(
        lambda name: parse_receipt(job.output.read(job.path(f"_shards/{name}"))), names
    )
    intact = [receipt for receipt in receipts if receipt]
    plans = {receipt.plan for receipt in intact}
    manifest = find_manifest(job.output_dir, job.output)
    if manifest and plan.split in manifest.splits:
        plans.add(manifest.splits[plan.split].plan_digest)
    shards = naming.shard_files(plan.split, None, job.converter.schema.files)
    if plans != {plan.digest} and (
        plans or names or fnmatch.filter(job.output.list(job.output_dir), shards)
    ):
        return None
    checksums = {receipt.raw_checksum for receipt in intact}
    return dataclasses.replace(
        Claim.of(plan), raw_checksum=checksums.pop() if len(checksums) == 1 else None
    )


def _remove_split(job: ConversionJob, split: str, old: Claim) -> None:
    """Removes the split from the manifest and sidecars, then exactly the old plan's files.
    Idempotent."""
    if manifest := find_manifest(job.output_dir, job.output):
        if set(manifest.splits) - {split}:
            update_manifest(
                job.output,
                job.output_dir,
                lambda current: _without(job, current or manifest, split),
            )
        else:
            for name in (naming.MANIFEST_FILE, *sidecar_names(manifest.schema, manifest.labels)):
                job.output.delete(job.path(name))
    # Receipts before shards: a receipt states that its shard exists.
    numbers = range(old.num_shards)
    receipts = [naming.receipt_file(split, shard, old.num_shards) for shard in numbers]
    shards = [naming.shard_file(split, shard, old.num_shards, old.files) for shard in numbers]
    for files in (receipts, shards, _files_of(split)):
        in_parallel(job.output.delete, [*map(job.path, files)])


def _without(job: ConversionJob, manifest: Manifest, split: str) -> Manifest:
    splits = {name: entry for name, entry in manifest.splits.items() if name != split}
    others = dataclasses.replace(manifest, splits=splits)
    write_sidecars(job.output, manifest.directory, others)
    return others
