"""A survey: a job that looks at all raw data in parallel before a conversion.

Its results for a group of sources are a file in <output>/_scratch, named by a hash of everything
that they depend on, so an interrupted survey resumes. The commit of the conversion removes the
files."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.scratch import remove_scratch
from beam_jobs.split.packed_files import check_unchanged
from beam_jobs.stored_job import StoredJob
from pipeline.errors import ConversionError, RawDataError
from pipeline.shards.typed_json import Json, JsonFile, read_sealed, sealed_line
from pipeline.storage.storage import write_file

_SEEN = re.compile(r"survey\.[0-9a-f]{16}-\d+")
_REMEDY = "Remove it, and run the command again."


@dataclass(frozen=True, kw_only=True)
class Survey(ConversionJob):
    """A job that looks at sources.

    look: returns the findings for one source, as JSON; raises RawDataError.
    groups: the sources that a worker looks at together.
    name: of the files, without their number."""

    look: Callable[[Source], Json]
    groups: Sequence[Sequence[Source]]
    name: str

    @cached_property
    def paths(self) -> list[str]:
        """The file of each group."""
        return [self.path(f"_scratch/{self.name}-{n}") for n in range(len(self.groups))]

    @property
    def num_elements(self) -> int:
        """See ConversionJob."""
        return len(self.groups)

    def num_seen(self) -> int:
        """How many groups have been looked at."""
        names = self.output.list(self.path("_scratch"))
        return sum(name.startswith(f"{self.name}-") for name in names)

    def results(self) -> Iterator[Json]:
        """Yields the findings for each source, in order. Raises the RawDataError of `look`;
        ConversionError if the runner lost a group."""
        listed = self.output.list(self.path("_scratch")).items()
        stats = {self.path(f"_scratch/{name}"): stat for name, stat in listed}
        for path in self.paths:
            if path not in stats:
                raise ConversionError(
                    f"{path} is missing: another command removed it, or the runner lost it. Run "
                    "the command again."
                )
        ranges = ((path, 0, stats[path].bytes) for path in self.paths)  # reads ahead
        for path, data in zip(self.paths, self.output.read_ranges(ranges), strict=True):
            seen = _parsed(path, data)
            if error := seen.get("error"):
                raise RawDataError(*error)
            yield from seen["sources"]


def remove_surveys(job: ConversionJob) -> None:
    """Removes the files of all surveys, including those of earlier raw data and options. Raises
    StorageError."""
    remove_scratch(job, "survey.*", _SEEN.fullmatch)


def looked(start: Any, stored: StoredJob) -> Any:
    """The chain of a survey. start: a Flow of the numbers of groups."""
    return start.each(look, stored)


def look(number: int, stored: StoredJob) -> Iterator[None]:
    """Writes the findings for the sources of a group."""
    job: Survey = stored.job
    path, sources = job.paths[number], job.groups[number]
    if job.output.exists(path) and "sources" in _parsed(path, job.output.read(path)):
        return  # but not for an error, whose cause may be gone
    try:
        seen: Json = {"sources": [job.look(source) for source in sources]}
    except RawDataError as e:  # the launcher raises the first one in order
        seen = {"error": e.args}
    for source in sources:
        check_unchanged(source)
    write_file(job.output, path, sealed_line(seen))
    yield from ()


def _parsed(path: str, data: bytes) -> Json:
    """The content of a file: `sources`, or an `error`. Raises ConversionError."""
    return read_sealed(JsonFile(path, ConversionError, _REMEDY), data, Json)
