"""Names of shard files: train-00007-of-01024 if a schema has no other, and of everything that stands beside them.

Writers name with it, readers list with it. Nothing but a shard begins with a split's name: readers glob those."""

import re

from pipeline.shards.errors import OptionError
from pipeline.shards.schema import SHARD_FILES

__all__ = [
    "MANIFEST_FILE",
    "index_file",
    "plan_file",
    "receipt_file",
    "record_key",
    "rejects_file",
    "shard_file",
    "shard_files",
    "shard_pattern",
    "summary_file",
    "validate_split",
    "verdict_file",
]

MANIFEST_FILE = "manifest.json"
_SPLIT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TAKEN = ("manifest", "dataset_info", "features")


def validate_split(split: str) -> str:
    """Returns `split`; raises OptionError unless it is a lower-case word that no other file begins with."""
    if not _SPLIT.fullmatch(split) or split.startswith(_TAKEN):
        raise OptionError(
            f"{split!r} cannot be a split's name. Allowed: lower-case letters, digits and _, beginning with a "
            f"letter, at most 64, and not beginning with {', '.join(_TAKEN)}."
        )
    return split


def shard_file(split: str, shard: int, num_shards: int, files: str = SHARD_FILES) -> str:
    """train-00007-of-01024: five digits at least, more where the count needs them. files: see Schema."""
    return files.replace("{SPLIT}", split).replace("{SHARD_X_OF_Y}", f"{shard:05d}-of-{num_shards:05d}")


def shard_files(split: str, num_shards: int | None, files: str = SHARD_FILES) -> str:
    """A glob pattern of all shards of a split, of however many if None; hidden temporary ones not among them."""
    count = "*" if num_shards is None else f"{num_shards:05d}"
    return files.replace("{SPLIT}", split).replace("{SHARD_X_OF_Y}", f"*-of-{count}")


def shard_pattern(split: str, files: str = SHARD_FILES) -> re.Pattern[str]:
    """Matches the name of any shard of a split, of however many."""
    pattern = re.escape(files).replace(re.escape("{SPLIT}"), re.escape(split))
    return re.compile(pattern.replace(re.escape("{SHARD_X_OF_Y}"), r"\d{5,}-of-\d{5,}"))


def index_file(split: str) -> str:
    """Lengths and crcs of a split's records, in shard order."""
    return f"_index/{split}.npy"


def receipt_file(split: str, shard: int, num_shards: int) -> str:
    """What one finished shard holds; written after the shard, read by resume and commit."""
    return f"_shards/{shard_file(split, shard, num_shards)}.json"


def plan_file(split: str) -> str:
    """The claim on a split: which plan is being, or was, written here."""
    return f"_shards/{split}.plan.json"


def verdict_file(split: str, run_id: str) -> str:
    """How one run ended with a split, until its launcher has fetched it. Of one run: two may end at the same time."""
    return f"_shards/{split}.verdict.{run_id}.json"


def record_key(split: str, file: str, number: int) -> str:
    """The key of a record that came in a TFRecord file and has no name; file: its path below the raw data.

    At least nine digits, so that the keys of a file sort as its records do."""
    return f"{split}/{file}:{number:09d}"


def rejects_file(split: str) -> str:
    """The ledger of what could not be converted, and why."""
    return f"_rejects/{split}.jsonl"


def summary_file(split: str) -> str:
    """What the conversion of a split came to: counts, sizes, speed, warnings."""
    return f"_summary/{split}.json"
