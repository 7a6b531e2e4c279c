"""The description of a conversion, which its launcher sends to every worker."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from beam_jobs.converter import Converter, Packer, Source

_BYTES_PER_BUCKET = 4 * 10**9  # of raw data; ~36,000 ImageNet references sort in one element
_MIN_BUCKETS = 8  # each source has a piece per bucket, of ~1 KB or more


@dataclass(frozen=True)
class Waiting:
    """What a launcher does after submitting a job to a service that no longer needs it."""

    detach: bool = False  # exit immediately
    cancel_on_interrupt: bool = False  # Ctrl-C cancels the job instead of only ending the wait


@dataclass(frozen=True)
class ConversionJob:
    """The description of a conversion. Immutable, and pickled to every worker."""

    converter: Converter | Packer
    sources: tuple[Source, ...]
    output_dir: str
    target_shard_bytes: int = 100 * 10**6
    num_shards: Mapping[str, int] = field(default_factory=dict)  # by split; absent: derived from target_shard_bytes
    seed: int = 0
    max_bad_records: int = 0
    overwrite: bool = False  # replaces a split of another plan instead of refusing it
    verify_existing: bool = False  # reads finished shards again instead of comparing sizes
    scratch: tuple[str, ...] = ()  # temporary files among the sources, removed by the commit
    expected: Mapping[str, int] = field(default_factory=dict)  # required number of records by split, if there is one
    run_id: str = ""  # identifies this run in its verdict; never in data
    started: float = field(default_factory=time.time, compare=False)  # Unix seconds

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits to write. Sorted, because their numbers are part of the shuffle keys."""
        return tuple(sorted({source.split for source in self.sources}))

    def sources_of(self, split: str) -> list[Source]:
        """The sources of a split, in order."""
        return [source for source in self.sources if source.split == split]

    @cached_property
    def num_buckets(self) -> int:
        """A power of two that grows with the input. It does not affect the output."""
        wanted = sum(source.guessed_bytes for source in self.sources) // _BYTES_PER_BUCKET
        return max(_MIN_BUCKETS, 1 << wanted.bit_length())
