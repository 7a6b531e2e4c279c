"""The repairs that verify suggests: commands to copy, with their effects."""

import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pipeline.shards.manifest import INDEX_WRITER, Manifest
from pipeline.shards.schema import SHARD_FILES
from pipeline.tools.split_verifier import Cause, Problem

ProblemsBySplit = Mapping[str, Sequence[Problem]]


def repairs(manifest: Manifest, found: ProblemsBySplit, sidecars: Sequence[Problem]) -> Iterator[str]:
    """One line per repair. found: the problems of each split. sidecars: those of the files for TFDS."""
    changed, wrong = _splits(found, "changed"), _splits(found, "as converted")
    if manifest.writer.startswith(INDEX_WRITER):
        yield from _of_indexed(changed, wrong)
    else:
        yield from _of_converted(manifest, changed, wrong)
    every = itertools.chain(*found.values(), sidecars)
    strays = [problem.where for problem in every if problem.cause == "stray"]
    if strays:
        remove = "gcloud storage rm" if strays[0].startswith("gs://") else "rm"
        yield f"To remove files that are not in the manifest: {remove} {shlex.join(strays)}"
    if any(problem.cause == "sidecar" for problem in sidecars):
        command = f"python -m pipeline.verify {shlex.quote(manifest.directory)} --write_sidecars"
        yield f"To repair the files for TFDS: {command} (it rewrites them from the manifest, then verifies everything)."


def _splits(found: ProblemsBySplit, cause: Cause) -> str:
    return ",".join(split for split, problems in found.items() if any(p.cause == cause for p in problems))


def _of_converted(manifest: Manifest, changed: str, wrong: str) -> Iterator[str]:
    again = f"run the conversion again, its command with --output={_output_path(manifest)} --splits="
    if changed:
        yield (
            f"To repair {changed}: {again}{changed} --verify_existing (it rewrites only what is damaged); or copy the "
            "files named above again."
        )
    if wrong:
        yield (
            f"Records of {wrong} are wrong, although their bytes are as converted: repair the raw data or the label "
            f"file, and {again}{wrong} --overwrite."
        )


def _of_indexed(changed: str, wrong: str) -> Iterator[str]:
    again = "run the indexing command again (python -m pipeline.index)"
    if changed:
        yield f"To repair {changed}: copy the files named above again; or, if they were replaced on purpose, {again}."
    if wrong:
        yield (
            f"Records of {wrong} are wrong, although their bytes are as indexed: replace the files, or correct the "
            f"label file, and {again} with the right --labels_file, --label_key and --label_base."
        )


def _output_path(manifest: Manifest) -> str:
    """--output of the conversion: --schema=tfds writes to a subdirectory of it, where TFDS looks."""
    directory = manifest.directory
    if manifest.schema.files == SHARD_FILES:
        return shlex.quote(directory)
    if "://" not in directory:
        directory = str(Path(directory).resolve())
    below = f"/{manifest.name}/{manifest.schema.version}"
    if directory.endswith(below):
        return shlex.quote(directory.removesuffix(below))
    return f"PARENT (after moving {shlex.quote(directory)} to PARENT{below})"
