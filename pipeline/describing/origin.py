"""How a dataset was made: by which program, from what, and when."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pipeline.shards.manifest import INDEX_WRITER, Manifest, SplitEntry
from pipeline.shards.naming import summary_file
from pipeline.sizes import counted, format_bytes
from pipeline.storage.storage import Storage, join


@dataclass(frozen=True)
class Conversion:
    """What the summary of a split's conversion tells. started: Unix seconds. problem: why it tells nothing, or ""."""

    started: float | None = None
    seconds: float | None = None
    warnings: Sequence[str] = ()
    problem: str = ""


def read_conversion(storage: Storage, directory: str, split: str) -> Conversion:
    """From the split's summary; an empty one if the dataset has none, as an index of foreign files. StorageError."""
    path = join(directory, summary_file(split))
    if not storage.exists(path):
        return Conversion()
    try:
        summary = json.loads(storage.read(path))
        started, seconds, warnings = summary["started"], summary["seconds"], summary["warnings"]
        datetime.fromtimestamp(started, UTC)
        return Conversion(float(started), float(seconds), tuple(map(str, warnings)))
    except (ValueError, TypeError, KeyError, OverflowError, OSError):  # the page can do without it
        return Conversion(problem=f"{path} is damaged")


def of_dataset(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """(what, value) of the dataset."""
    indexed = manifest.writer.startswith(INDEX_WRITER)
    note = ": an index of existing TFRecord files" if indexed else ""
    yield "written by", (manifest.writer or "an unknown program") + note
    yield "schema", manifest.schema.name
    if labels := manifest.labels:
        yield "labels", f"{labels.count:,} classes in {labels.key}, numbered from {labels.base}"


def of_split(name: str, entry: SplitEntry, conversion: Conversion) -> Iterator[tuple[str, str]]:
    """(what, value) of a split."""
    if raw := _raw(entry.sources):
        yield f"{name}: raw data", raw
    if conversion.started is not None:
        when = datetime.fromtimestamp(conversion.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        yield f"{name}: converted", f"{when}, in {conversion.seconds:,.0f} s"
    if conversion.problem:
        yield f"{name}: converted", conversion.problem
    yield f"{name}: fingerprint", entry.fingerprint
    yield f"{name}: plan, seed", f"{entry.plan_digest}, {entry.seed}"
    for warning in conversion.warnings:
        yield f"{name}: warning", warning


def _raw(sources: Mapping[str, int]) -> str:
    inputs = sources.get("inputs", 0)
    told = [counted(inputs, "input")] if inputs else []
    return ", ".join([*told, *([format_bytes(sources["bytes"])] if sources.get("bytes") else [])])  # 0: of folders
