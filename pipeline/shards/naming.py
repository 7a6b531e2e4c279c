"""Names of the files of a dataset: of shards, by default train-00007-of-01024, and of all others.

Writers name files with it, readers list them. Only shards have names that begin with a split's:
readers glob those. Hashes of keys decide the rank of a record, which is its place, and the digest
of a split's keys. docs/format.md freezes them: they must never change. Pure."""

import hashlib
import re
from collections.abc import Iterable

import numpy as np

from pipeline.errors import OptionError
from pipeline.shards.schema import SHARD_FILES

MANIFEST_FILE = "manifest.json"
COPIES_FILE = "_index/copies.json"
_SPLIT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TAKEN = ("manifest", "dataset_info", "features")


def validate_split(split: str) -> str:
    """Returns `split`. Raises OptionError unless it is a lower-case word that begins no other
    file's name."""
    if not _SPLIT.fullmatch(split) or split.startswith(_TAKEN):
        raise OptionError(
            f"{split!r} cannot be a split's name. Allowed: up to 64 lower-case letters, digits and "
            f"_, starting with a letter, but not with {', '.join(_TAKEN)}."
        )
    return split


def shard_file(split: str, shard: int, num_shards: int, files: str = SHARD_FILES) -> str:
    """train-00007-of-01024, with more digits if the count needs them. files: see Schema."""
    return files.replace("{SPLIT}", split).replace(
        "{SHARD_X_OF_Y}", f"{shard:05d}-of-{num_shards:05d}"
    )


def shard_files(split: str, num_shards: int | None, files: str = SHARD_FILES) -> str:
    """A glob pattern for the shards of a split, without hidden temporary files. num_shards: None
    for any number."""
    count = "*" if num_shards is None else f"{num_shards:05d}"
    return files.replace("{SPLIT}", split).replace("{SHARD_X_OF_Y}", f"*-of-{count}")


def shard_pattern(split: str, files: str = SHARD_FILES) -> re.Pattern[str]:
    """Matches the names of all shards of a split, for any number of shards."""
    pattern = re.escape(files).replace(re.escape("{SPLIT}"), re.escape(split))
    return re.compile(pattern.replace(re.escape("{SHARD_X_OF_Y}"), r"\d{5,}-of-\d{5,}"))


def index_file(split: str) -> str:
    """Lengths and checksums of a split's records, in shard order."""
    return f"_index/{split}.npy"


def parts_file(split: str) -> str:
    """Sizes and checksums of the parts of a large index."""
    return f"_index/{split}.parts.json"


def receipt_file(split: str, shard: int, num_shards: int) -> str:
    """The content of a finished shard. Written after the shard, read by resume and commit."""
    return f"_shards/{shard_file(split, shard, num_shards)}.json"


def plan_file(split: str) -> str:
    """The claim on a split: the plan that is being, or was, written here."""
    return f"_shards/{split}.plan.json"


def verdict_file(split: str, run_id: str) -> str:
    """How a run ended with a split, until its launcher has read it. One per run: two may end at the
    same time."""
    return f"_shards/{split}.verdict.{run_id}.json"


def record_key(split: str, file: str, number: int) -> str:
    """The key of a record from a TFRecord file, where records have no names. file: its path below
    the raw data.

    With at least nine digits, so that the keys of a file sort like its records."""
    return f"{split}/{file}:{number:09d}"


def rejects_file(split: str) -> str:
    """The ledger of inputs that could not be converted, with reasons."""
    return f"_rejects/{split}.jsonl"


def summary_file(split: str) -> str:
    """The report on the conversion of a split: counts, sizes, speed, warnings."""
    return f"_summary/{split}.json"


def ranks(seed: int, split: str, keys: Iterable[bytes]) -> np.ndarray:
    """uint64 [n]: the rank of each key."""
    prefix = f"{seed}\0{split}\0".encode()
    digests = b"".join([hashlib.blake2b(prefix + key, digest_size=8).digest() for key in keys])
    return np.frombuffer(digests, ">u8").astype(np.uint64)


def hex_digest(data: bytes) -> str:
    """32 hex digits that identify the data."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def key_digest(keys: Iterable[bytes]) -> int:
    """The sum of the 128-bit hashes of keys, or of other items, modulo 2^128."""
    hashes = b"".join([hashlib.blake2b(key, digest_size=16).digest() for key in keys])
    quarters = np.frombuffer(hashes, ">u4").reshape(-1, 4).sum(0, np.uint64).tolist()
    return add_digests(
        quarter << shift for quarter, shift in zip(quarters, (96, 64, 32, 0), strict=True)
    )


def add_digests(digests: Iterable[int]) -> int:
    """The digest of a set from those of its parts."""
    return sum(digests) & ((1 << 128) - 1)
