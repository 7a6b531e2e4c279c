"""Every place of the four packages that removes, replaces or truncates something, and why it may.

tests/test_deletions.py holds the table against the code: a new place needs a row, and a row needs its place."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["PLACES", "Proof"]


class Proof(NamedTuple):
    """How a place knows that something is ours, and the tests that what is not ours stays."""

    ours: str
    shown_by: tuple[str, ...]


FOREIGN = "tests/test_foreign_files.py::"
RUNS = "tests/trainer/test_foreign_files.py::"
PUBLISHING = "tests/trainer/serving/test_publishing.py::"
RANDOM_TREES = f"{FOREIGN}test_no_command_changes_what_others_put_into_its_directory"
RANDOM_WORKDIRS = f"{RUNS}test_no_run_changes_what_others_put_into_its_work_directory"

PRIVATE = Proof(
    "made by this process, in a new temporary directory, or under a name with 32 or more random bits",
    (
        "tests/pipeline/storage/test_storage.py::test_an_exception_in_the_block_leaves_the_old_file_and_no_trace",
    ),
)
CLAIMED = Proof(
    "the split is claimed (_shards/<split>.plan.json), and the names were free before the first claim",
    (
        RANDOM_TREES,
        f"{FOREIGN}test_a_claim_names_files_of_its_own_directory_only",
        "tests/beam_jobs/test_overwrite.py::test_shards_that_no_conversion_wrote_are_never_replaced",
    ),
)
NAMED = Proof(
    "its name has a hash that only we compute, or the plan's digest stands in it",
    (RANDOM_TREES, "tests/beam_jobs/test_damaged_receipts.py"),
)
IN_OUR_FORMAT = Proof(
    "what is there has our format, or has a checksum of ours",
    (
        RANDOM_TREES,
        RANDOM_WORKDIRS,
        f"{FOREIGN}test_a_page_replaces_only_a_page",
        f"{FOREIGN}test_an_index_for_dali_replaces_only_such_an_index",
        f"{FOREIGN}test_digits_do_not_replace_imagenet",
        f"{RUNS}test_lines_that_no_run_wrote_are_neither_cut_nor_continued",
    ),
)
RUN = Proof(
    "the work directory has been marked (_owner), when none of the names that runs replace was taken",
    (RANDOM_WORKDIRS, f"{RUNS}test_a_directory_with_a_file_that_runs_replace_is_no_work_directory"),
)
CHECKPOINT = Proof(
    "has the parts of a checkpoint; unfinished on a disk: Orbax's own suffix. A checkpoint is removed as a unit",
    (
        RANDOM_WORKDIRS,
        f"{RUNS}test_a_directory_with_the_name_of_a_checkpoint_is_refused_before_the_training",
        f"{RUNS}test_in_a_bucket_only_unfinished_checkpoints_are_removed",
        f"{RUNS}test_a_checkpoint_that_is_a_link_is_kept",
    ),
)
EXPORT = Proof(
    "its description states this very number, or is that of an earlier release; unfinished: a lock with our mark",
    (
        RANDOM_TREES,
        f"{PUBLISHING}test_directories_with_a_number_for_their_name_that_no_export_made_are_never_removed",
        f"{PUBLISHING}test_user_files_inside_an_export_are_never_removed",
        f"{PUBLISHING}test_only_assets_inside_an_export_are_removed_with_it",
        f"{PUBLISHING}test_links_are_never_followed",
        f"{PUBLISHING}test_a_hidden_directory_without_our_mark_stays",
    ),
)
CACHE = Proof(
    "in a directory named by the data's fingerprint, and not larger than these records",
    ("tests/pipeline/caches/test_disk_cache.py::test_what_is_not_a_cache_is_refused",),
)
PRIMITIVE = Proof(
    "not its question: the callers have rows of their own",
    ("tests/pipeline/storage/test_local.py::test_a_link_is_neither_followed_nor_replaced",),
)

PLACES: Mapping[str, Proof] = {
    "beam_jobs/split/claims.py:_publish": CLAIMED,
    "beam_jobs/split/claims.py:_remove_split": CLAIMED,
    "beam_jobs/split/commit.py:_publish_manifest.merged": CLAIMED,
    "beam_jobs/split/commit.py:_sweep": NAMED,
    "beam_jobs/split/commit.py:_proven_rows": CLAIMED,
    "beam_jobs/split/ledger.py:distrusting_receipts": NAMED,
    "beam_jobs/stages.py:commit": NAMED,
    "beam_jobs/stored_job.py:StoredJob.of": NAMED,
    "beam_jobs/stored_job.py:remove_stored_job": NAMED,
    "beam_jobs/split/packed_files.py:_packed": NAMED,
    "beam_jobs/split/ledger.py:Receipt.write": CLAIMED,
    "beam_jobs/split/summary.py:write_summary": CLAIMED,
    "beam_jobs/survey.py:look": NAMED,
    "beam_jobs/scratch.py:Scratch.__exit__": NAMED,
    "beam_jobs/scratch.py:remove_scratch": NAMED,
    "beam_jobs/scratch.py:Scratch.uncompressed": NAMED,
    "beam_jobs/split/commit.py:Verdict.fetch": NAMED,
    "beam_jobs/split/commit.py:Verdict.write": CLAIMED,
    "beam_jobs/split/commit.py:_sweep_verdicts": NAMED,
    "beam_jobs/split/gather.py:write_shard": CLAIMED,
    "converters/digits_raw.py:write_raw": IN_OUR_FORMAT,
    "pipeline/inputs/caches.py:DiskStore._open": CACHE,
    "pipeline/commands/index.py:_publish": IN_OUR_FORMAT,
    "pipeline/inputs/quarantine.py:_File.add": IN_OUR_FORMAT,
    "pipeline/inputs/slots.py:Slots.take": PRIVATE,  # a file without a name
    "pipeline/inputs/work.py:packed": PRIVATE,  # in memory
    "pipeline/pages/page.py:write_page": IN_OUR_FORMAT,
    "pipeline/shards/index_writer.py:write_index": CLAIMED,  # infeed index looks at what is there
    "pipeline/shards/split_index.py:_copy": NAMED,
    "pipeline/shards/schema.py:update_statistics": CLAIMED,
    "pipeline/shards/copies.py:update_copies": CLAIMED,
    "pipeline/shards/manifest.py:update_manifest": IN_OUR_FORMAT,
    "pipeline/shards/sidecars.py:write_sidecars": CLAIMED,
    "pipeline/sources/tfds_features.py:described_by_tfds": PRIVATE,
    "pipeline/storage/gcs.py:GcsStorage.delete": PRIMITIVE,
    "pipeline/storage/local.py:LocalStorage.delete": PRIMITIVE,
    "pipeline/storage/local.py:LocalStorage.publish": PRIMITIVE,
    "pipeline/storage/local.py:LocalStorage.sweep": NAMED,
    "pipeline/storage/local.py:LocalStorage.update": PRIMITIVE,
    "pipeline/storage/local.py:_hidden_beside": PRIVATE,
    "pipeline/storage/s3.py:S3Storage.delete": PRIMITIVE,
    "pipeline/storage/s3.py:_check_conditions": PRIVATE,
    "pipeline/storage/storage.py:write_file": PRIMITIVE,
    "pipeline/commands/verify.py:write_dali_index.write": IN_OUR_FORMAT,
    "trainer/checkpointing/orbax_paths.py:BucketPath.rmtree": CHECKPOINT,
    "trainer/checkpointing/orbax_paths.py:BucketPath.unlink": CHECKPOINT,
    "trainer/checkpointing/orbax_paths.py:BucketPath.write_bytes": CHECKPOINT,
    "trainer/checkpointing/orbax_paths.py:BucketPath.write_text": CHECKPOINT,
    "trainer/checkpointing/orbax_paths.py:remove_unfinished": CHECKPOINT,
    "trainer/checkpointing/manager.py:CheckpointManager._remove_superseded": CHECKPOINT,
    "trainer/checkpointing/arrays.py:ContentsHandler.async_save.write": CHECKPOINT,
    "trainer/checkpointing/keeping.py:Evaluations._change": IN_OUR_FORMAT,
    "trainer/results.py:_write": RUN,
    "trainer/commands/running.py:_write_predictions": RUN,
    "trainer/reports/metrics_file.py:_cut_parts": IN_OUR_FORMAT,
    "trainer/checkpointing/kept_data.py:keep": RUN,
    "trainer/checkpointing/iterator_files.py:IteratorFiles.write": RUN,
    "trainer/reports/metrics_file.py:_open": IN_OUR_FORMAT,
    "trainer/loop/profiler.py:Profile._upload": RUN,
    "trainer/serving/publishing.py:Exports._remove": EXPORT,
    "trainer/serving/publishing.py:Exports._move": EXPORT,
    "trainer/serving/publishing.py:Exports.unpublished": PRIVATE,
    "trainer/serving/publishing.py:copy_file": EXPORT,
    "trainer/serving/publishing.py:_remove_left": EXPORT,
    "trainer/serving/verification.py:main": PRIVATE,
    "trainer/serving/verification.py:served": PRIVATE,
    "trainer/reports/segments.py:append": RUN,
    "trainer/checkpointing/owner.py:Ownership._renew": IN_OUR_FORMAT,
    "trainer/checkpointing/owner.py:Ownership.take": IN_OUR_FORMAT,
    "trainer/checkpointing/owner.py:check_writable": PRIVATE,
}
