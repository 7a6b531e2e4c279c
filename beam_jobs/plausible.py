"""Options that are valid but surely a mistake: a dry run and a conversion both refuse them, or warn."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from beam_jobs.shard_plan import SplitPlan
from pipeline.errors import ConversionError, OptionError
from pipeline.sizes import format_bytes
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import find_file


def check_places(raw_data: str, output_dir: str) -> None:
    """Raises OptionError if one directory is the other or is inside it. Follows symbolic links on a disk.

    The next run would take shards for raw data, and removing one directory would remove the other."""
    for option, place in (("--raw-data-dir", raw_data), ("--output", output_dir)):
        if not place:
            raise OptionError(f"{option} is empty. Give a directory; the current one is '.'.")
    raw, output = _parts(raw_data), _parts(output_dir)
    if raw[: len(output)] == output and len(raw) > len(output):
        problem = f"--output={output_dir} contains the raw data ({raw_data}): shards would be mixed with it"
    elif output[: len(raw)] == raw:
        where = "is the directory of" if output == raw else "is inside"
        problem = f"--output={output_dir} {where} the raw data ({raw_data}): a second run would convert shards"
    else:
        return
    if not find_file(open_storage(raw_data), raw_data):
        raise OptionError(f"{problem}. Give an output directory outside the raw data.")


def check_size(plan: SplitPlan) -> None:
    """Raises ConversionError if there are no records, or --target-shard-bytes would produce more shards than them."""
    job, records = plan.job, plan.total.records
    if not records:
        raise ConversionError(
            f"split {plan.split!r} has no records: its sources contain nothing to convert. If it is a fraction of "
            "them, give another --validation-fraction or --test-fraction; 0 means no such split."
        )
    size = plan.sampled.scaled(plan.total.bytes)
    if plan.split in job.num_shards or job.target_shard_bytes * records >= size:
        return
    raise ConversionError(
        f"--target-shard-bytes={job.target_shard_bytes} (bytes) is less than the mean record of split {plan.split!r}, "
        f"{format_bytes(size / records)}: {plan.num_shards:,} shards for {records:,} records. A number without a "
        "unit is in bytes; 100MB to 1GB is usual. If you want empty shards, give the number of shards instead."
    )


def empty_shards(plan: SplitPlan, records: Sequence[int]) -> Iterator[str]:
    """Yields a warning if more shards were requested than there are records. records: per shard."""
    if plan.num_shards > max(1, sum(records)):
        yield (
            f"{plan.num_shards:,} shards were requested for {sum(records):,} records: {records.count(0):,} of them are "
            "empty. These are files of 0 bytes, which the manifest lists and readers skip; they are of no use."
        )


def _parts(directory: str) -> Sequence[str]:
    if is_remote(directory):
        return directory.rstrip("/").split("/")
    return Path(directory).resolve().parts
