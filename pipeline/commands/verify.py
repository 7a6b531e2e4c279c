"""infeed verify DIR: reads every byte of a converted dataset and lists everything that is damaged.

Exit code 0 if everything is intact, 1 if anything is damaged, 2 if there is nothing to verify.
Works on a disk or in a bucket; needs neither TensorFlow nor Beam."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import functools
import itertools
import shlex
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from rich.box import SIMPLE_HEAD

from pipeline.commands.dataset_facts import LabelCounts
from pipeline.commands.split_verifier import Cause, Problem, SplitVerifier, check_sidecars
from pipeline.console.console import Console, byte_bar, say, table
from pipeline.console.interrupts import Exit
from pipeline.console.parser import FACTS, Parser, exit_with
from pipeline.errors import ManifestError, OptionError
from pipeline.shards.copies import counted_copies, found_copies
from pipeline.shards.frames import FRAME_BYTES
from pipeline.shards.manifest import Manifest, SplitEntry, read_manifest
from pipeline.shards.naming import COPIES_FILE
from pipeline.shards.sidecars import sidecar_texts, write_sidecars
from pipeline.shards.split_index import SplitIndex
from pipeline.sizes import counted, format_bytes
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import in_parallel, join, write_file

EXAMPLES = ("shards", "shards --split validation --decode")
DALI_DIRECTORY = "_dali"
RESULTS = ("split", "records", "bytes", "shards", "images", "keys", "result")
ProblemsBySplit = Mapping[str, Sequence[Problem]]


def main(argv: Sequence[str] | None = None) -> int:
    """Verifies, prints, and returns the exit code. Raises InfeedError if there is nothing to
    verify."""
    args = _parser().parse_args(argv)
    FACTS["directory"] = args.directory
    console = Console()
    storage = open_storage(args.directory)
    manifest = read_manifest(args.directory)
    splits = _splits(args.split, manifest)
    if args.write_sidecars:
        if manifest.is_index:
            raise OptionError(
                f"--write-sidecars: {manifest.directory} was indexed, not converted, so any files "
                "for TFDS in it are not infeed's. Leave the option out."
            )
        write_sidecars(storage, manifest.directory, manifest)
        say(console, f"wrote {', '.join(sorted(sidecar_texts(manifest)))} -> {manifest.directory}")
    sidecars = list(check_sidecars(storage, manifest))
    for problem in sidecars:
        say(console, f"damaged: {problem}")
    rows = []
    notes = []
    try:
        notes += [*found_copies(manifest), counted_copies(manifest)]
    except ManifestError as e:
        sidecars.append(Problem(join(manifest.directory, COPIES_FILE), str(e)))
        say(console, f"damaged: {e}")
    problems_of_splits, intact = {}, {}
    with byte_bar(console) as progress:
        bar = progress.add_task(
            "verifying", total=sum(manifest.splits[split].num_bytes for split in splits)
        )
        for split in splits:
            advance = functools.partial(progress.advance, bar)
            verifier = SplitVerifier(
                storage=storage, manifest=manifest, split=split, decode=args.decode, read=advance
            )
            problems = problems_of_splits[split] = []
            for problem in verifier.problems():
                problems.append(problem)
                say(console, f"damaged: {problem}")
            rows.append(_row(verifier, problems, args.decode))
            intact[split] = {
                "records": verifier.entry.num_records,
                "intact": verifier.records,
                "problems": len(problems),
            }
            notes += _notes(verifier)
            if args.dali_index is not None:
                directory = args.dali_index or join(args.directory, DALI_DIRECTORY)
                what = "no DALI index, because the split is damaged."
                if verifier.index and not problems:
                    paths = write_dali_index(directory, verifier.entry, verifier.index)
                    what = f"DALI index of {counted(len(paths), 'shard')} -> {directory}"
                notes.append(f"{split}: {what}")
    # fits 80 columns
    style = {"unwrapped": RESULTS, "box": SIMPLE_HEAD, "padding": (0, 1, 0, 0)}
    console.print(table(RESULTS, rows, "Verified", **style))
    lines = {
        "notes": [*dict.fromkeys(notes)],
        "repairs": [*repairs(manifest, problems_of_splits, sidecars)],
    }
    for line in itertools.chain(*lines.values()):
        say(console, line)
    every = [*itertools.chain(*problems_of_splits.values(), sidecars)]
    FACTS.update(lines, splits=intact, problems=[problem._asdict() for problem in every])
    return Exit.BAD_DATA if every else Exit.DONE


def _parser() -> Parser:
    parser = Parser(
        "pipeline.commands.verify",
        __doc__,
        EXAMPLES,
        ("pipeline.commands.describe", "pipeline.commands.index"),
    )
    parser.add_argument(
        "directory", metavar="DIR", help="a converted dataset: the directory of manifest.json"
    )
    parser.add_argument(
        "--split", nargs="+", action="extend", metavar="S", help="which splits (default: all)"
    )
    parser.add_json()
    parser.add_argument(
        "--decode", action="store_true", help="also decode every image (~1 ms for 500x375)"
    )
    parser.add_argument(
        "--write-sidecars",
        action="store_true",
        help=(
            "first rewrite, from the manifest, the files that TFDS needs to read DIR "
            "(dataset_info.json, features.json, label names)"
        ),
    )
    parser.add_argument(
        "--dali-index",
        nargs="?",
        const="",
        metavar="INDEX_DIR",
        help=(
            "write NVIDIA DALI's index of each intact split: a file <shard>.idx with a line "
            f"`offset size` per record (default: to DIR/{DALI_DIRECTORY}). Write it again after a "
            "conversion that replaces shards"
        ),
    )
    return parser


def _splits(names: Sequence[str] | None, manifest: Manifest) -> list[str]:
    for name in names or ():
        manifest.entry(name)
    if not manifest.splits:
        raise ManifestError(
            f"{manifest.directory}: the manifest has no splits, so there is nothing to verify."
        )
    return sorted(set(names or manifest.splits))


def _row(verifier: SplitVerifier, problems: Sequence[Problem], decoded: bool) -> tuple[str, ...]:
    entry = verifier.entry
    images = any(
        feature.content == "image" for feature in verifier.manifest.schema.features.values()
    )
    return (
        verifier.split,
        f"{verifier.records:,} of {entry.num_records:,}",
        format_bytes(entry.num_bytes),
        f"{len(entry.shards):,}",
        ("decoded" if decoded else "not decoded") if images else "none",
        verifier.key_verdict,
        f"{len(problems):,} damaged" if problems else "intact",
    )


def _notes(verifier: SplitVerifier) -> Iterator[str]:
    labels = verifier.manifest.labels
    if labels and verifier.labels:
        counts = verifier.labels
        inside = [count for label, count in counts.items() if labels.name_of(label) is not None]
        each = (
            f", each in {min(inside):,} to {max(inside):,} records" if len(set(inside)) > 1 else ""
        )
        known = LabelCounts(labels, counts)
        yield f"{verifier.split}: {known.occurring}{each}. {known.outside}".rstrip()
    if verifier.key_verdict == "not kept":
        yield (
            f"records of {verifier.manifest.name!r} do not contain their keys, so no key digest "
            "can be compared. This is normal: lengths and checksums cover every byte."
        )


def write_dali_index(directory: str, entry: SplitEntry, index: SplitIndex) -> list[str]:
    """Publishes <directory>/<shard>.idx for each shard, as DALI's tfrecord2idx does. Returns the
    paths in shard order.

    Pass them to fn.readers.tfrecord(path=..., index_path=...). They are made from the split index,
    without reading shards, and get a directory of their own, because readers that match names would
    mistake them for shards."""
    storage = open_storage(directory)

    def write(number: int) -> str:
        sizes = index.shard_rows(number)[:, 0].astype(np.int64) + FRAME_BYTES
        offsets = np.cumsum(sizes) - sizes
        lines = (f"{offset} {size}\n" for offset, size in zip(offsets, sizes, strict=True))
        path = join(directory, f"{entry.shards[number].file}.idx")
        # that of a shard without records is empty
        if storage.exists(path) and storage.read(path)[:2] not in (b"0 ", b""):
            raise OptionError(
                f"{path} exists and is not an index for DALI. Give another directory, or move the "
                "file."
            )
        write_file(storage, path, "".join(lines).encode())
        return path

    return in_parallel(write, range(len(entry.shards)))


def repairs(
    manifest: Manifest, problems: ProblemsBySplit, sidecars: Sequence[Problem]
) -> Iterator[str]:
    """One line per repair. problems: of each split. sidecars: those of the files for TFDS."""
    changed = _names(problems, "changed")
    wrong = _names(problems, "as converted")
    if manifest.is_index:
        again = "run the indexing command again (infeed index)"
        of_changed = (
            f"copy the files named above again; or, if they were replaced on purpose, {again}."
        )
        of_wrong = (
            "as indexed: replace the files, or correct the label file, and "
            f"{again} with the right --labels-file, --label-key and --label-base."
        )
    else:
        again = f"run the conversion into {manifest.directory} again, its command with --splits="
        of_changed = (
            f"{again}{changed} --verify-existing (it rewrites only what is damaged); or copy the "
            "files named above again."
        )
        of_wrong = (
            f"as converted: repair the raw data or the label file, and {again}{wrong} --overwrite."
        )
    if changed:
        yield f"To repair {changed}: {of_changed}"
    if wrong:
        yield f"Records of {wrong} are wrong, although their bytes are {of_wrong}"
    every = itertools.chain(*problems.values(), sidecars)
    strays = [problem.where for problem in every if problem.cause == "stray"]
    if strays:
        scheme, _, _ = strays[0].rpartition("://")
        remove = {"gs": "gcloud storage rm", "s3": "aws s3 rm"}.get(scheme, "rm")
        yield f"To remove files that are not in the manifest: {remove} {shlex.join(strays)}"
    if _have(sidecars, "sidecar"):
        command = f"infeed verify {shlex.quote(manifest.directory)} --write-sidecars"
        yield (
            f"To repair the files for TFDS: {command} (it rewrites them from the manifest, then "
            "verifies everything)."
        )


def _names(problems: ProblemsBySplit, cause: Cause) -> str:
    return ",".join(split for split, of_split in problems.items() if _have(of_split, cause))


def _have(problems: Sequence[Problem], cause: Cause) -> bool:
    return any(problem.cause == cause for problem in problems)


if __name__ == "__main__":
    exit_with(main, facts=True)
