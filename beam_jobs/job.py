"""One conversion, as its launcher describes it to every worker."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from beam_jobs.converter import Converter, Source

__all__ = ["Job", "Waiting"]

_BYTES_PER_BUCKET = 4 * 10**9  # of raw data; ~36,000 ImageNet references sort in one element
_MIN_BUCKETS = 8  # each source has a piece for each bucket, ~1 KB however few rows it has


@dataclass(frozen=True)
class Waiting:
    """What a launcher does after it has handed a job to a service that needs it no more."""

    detach: bool = False  # it leaves at once
    cancel_on_interrupt: bool = False  # Ctrl-C ends the job, not only the waiting


@dataclass(frozen=True)
class Job:
    """One conversion, as its launcher describes it to every worker."""

    converter: Converter
    sources: tuple[Source, ...]
    output_dir: str
    target_shard_bytes: int = 100 * 10**6
    num_shards: Mapping[str, int] | None = None  # of a split; None or absent: by target_shard_bytes
    seed: int = 0
    max_bad_records: int = 0
    overwrite: bool = False  # a split of another plan is replaced, not refused
    verify_existing: bool = False  # finished shards are read again, not only measured
    scratch: tuple[str, ...] = ()  # temporary files among the sources, removed by the commit
    expected: Mapping[str, int] | None = None  # records that a split must have, where its owner says so
    run_id: str = ""  # names this run in its verdict; never in data
    counts_dir: str = ""  # on the launcher's machine, where workers say how far they are; "": nobody looks
    started: float = field(default_factory=time.time, compare=False)  # Unix seconds

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to write, sorted: their numbers are part of the shuffle keys."""
        return tuple(sorted({source.split for source in self.sources}))

    @cached_property
    def num_buckets(self) -> int:
        """A power of two that follows the size of the input. It changes no byte of output."""
        wanted = sum(source.guessed_bytes for source in self.sources) // _BYTES_PER_BUCKET
        return max(_MIN_BUCKETS, 1 << wanted.bit_length())
