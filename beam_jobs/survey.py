"""A survey: a job before a conversion, which looks at all raw data in parallel.

What it sees in some sources is a file in <output>/_scratch, named by everything that this depends
on: a survey that was interrupted looks at nothing twice, nor does the same command again. The
commit of the conversion removes the files."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.packed_files import check_unchanged
from pipeline.errors import ConversionError, RawDataError
from pipeline.shards.typed_json import Json, JsonFile, read_sealed, sealed_line
from pipeline.storage.storage import in_parallel, join, write_file

_SEEN = re.compile(r"survey\.[0-9a-f]{16}-\d+")
_REMEDY = "Remove it, and run the command again."


@dataclass(frozen=True, kw_only=True)
class Survey(ConversionJob):
    """A job that looks at sources. look: returns what one shows, as JSON has it; raises
    RawDataError. groups: of sources for a worker. name: of the files, without their number."""

    look: Callable[[Source], Json]
    groups: Sequence[Sequence[Source]]
    name: str

    @property
    def paths(self) -> list[str]:
        """The file of each group."""
        return [self.path(f"_scratch/{self.name}-{n}") for n in range(len(self.groups))]

    @property
    def elements(self) -> list[tuple[str, Sequence[Source]]]:
        """The groups, each with its path."""
        return [*zip(self.paths, self.groups, strict=True)]

    def num_seen(self) -> int:
        """How many groups have been looked at."""
        names = self.output.list(self.path("_scratch"))
        return sum(name.startswith(f"{self.name}-") for name in names)

    def results(self) -> Iterator[Json]:
        """What each source shows, in order. Raises RawDataError as `look` did; ConversionError if
        the runner lost a group."""
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
    """Removes what surveys saw, also of raw data and options of before."""
    directory = job.path("_scratch")
    job.output.sweep(directory, ["survey.*"])
    names = filter(_SEEN.fullmatch, job.output.list(directory))
    in_parallel(job.output.delete, [join(directory, name) for name in names])


def pipeline_of_survey(job: Survey, options: Any) -> Any:
    """The graph of a survey."""
    import apache_beam as beam  # --help and --dry-run work without it

    pipeline = beam.Pipeline(options=options)
    groups = pipeline | "groups" >> beam.Create(job.elements)
    job = replace(job, groups=(), sources=())  # workers get their own
    _ = groups | "spread" >> beam.Reshuffle() | "look" >> beam.Map(look, job)
    return pipeline


def look(element: tuple[str, Sequence[Source]], job: Survey) -> None:
    """(path, sources) -> writes what they show."""
    path, sources = element
    if job.output.exists(path) and "sources" in _parsed(path, job.output.read(path)):
        return  # an error may be gone
    try:
        seen: Json = {"sources": [job.look(source) for source in sources]}
    except RawDataError as e:  # the launcher raises the first one in order
        seen = {"error": e.args}
    for source in sources:
        check_unchanged(source)
    write_file(job.output, path, sealed_line(seen))


def _parsed(path: str, data: bytes) -> Json:
    """What a file says: `sources`, or an `error`. Raises ConversionError."""
    return read_sealed(JsonFile(path, ConversionError, _REMEDY), data, Json)
