"""infeed index PATTERN: makes existing TFRecord files readable as a converted dataset.

Reads every byte, then writes _index/<split>.npy and manifest.json to the files' directory; the
files stay as they are. Run it again for other splits, or after files have changed. If any file is
damaged, it writes nothing and exits with 1. Works on a disk or in a bucket; needs neither
TensorFlow nor Beam."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import functools
from collections.abc import Mapping, Sequence

from pipeline.commands.index_builder import IndexedFile, indexed_files, publish_index, schema_of
from pipeline.console.console import Console, byte_bar, say
from pipeline.console.interrupts import Exit
from pipeline.console.parser import Parser, exit_with
from pipeline.console.schema_options import add_schema_options, check_label_options
from pipeline.errors import ConversionError, EmptySplitError, OptionError
from pipeline.packages import version_of
from pipeline.shards.manifest import (
    INDEX_WRITER,
    Manifest,
    SplitEntry,
    find_manifest,
    update_manifest,
)
from pipeline.shards.naming import MANIFEST_FILE, index_file, parts_file, validate_split
from pipeline.shards.schema import PASSED_ON, Schema
from pipeline.shards.split_index import PARTS_BEGIN, decode_rows
from pipeline.sizes import format_bytes
from pipeline.sources.merged_schemas import merged_schema, read_labels, read_schema
from pipeline.sources.named_splits import Files, files_by_name, matching_files
from pipeline.sources.sequential_file import compressions
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, join

EXAMPLES = ("tfrecords", "'tfrecords/train-*' --split=train")


def main(argv: Sequence[str] | None = None) -> int:
    """Indexes, prints, and returns the exit code. Raises InfeedError if nothing can be indexed."""
    args = _parser().parse_args(argv)
    console = Console()
    check_label_options(args)
    directory, files = _find(args.pattern, args.split)
    storage = open_storage(directory)
    _check(storage, directory, files)
    schema = read_schema(args.schema_file) if args.schema_file else None
    splits = _read(console, storage, directory, files, schema)
    damaged = sum(len(file.problems) for files in splits.values() for file in files)
    if damaged:
        say(
            console,
            f"Nothing was written: {damaged:,} problems were found. Copy these files again; "
            "or leave the records out: python -m converters.tfrecord_to_gcs "
            f"--raw-data-dir={directory} --max-bad-records={damaged} --output=...",
        )
        return Exit.BAD_DATA
    _publish(storage, directory, splits, args, schema)
    for split, read in splits.items():
        records = sum(file.num_records for file in read)
        size = format_bytes(sum(file.bytes for file in read))
        say(console, f"{split}: {records:,} records, {size} in {len(read)} files -> {directory}")
    return Exit.DONE


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        "pipeline.commands.index",
        __doc__,
        EXAMPLES,
        ("converters.tfrecord_to_gcs", "pipeline.commands.verify"),
    )
    parser.add_argument(
        "pattern", metavar="PATTERN", help="files of one directory ('data/train-*'), or a directory"
    )
    parser.add_argument(
        "--split", help="the split of all files (default: the split in each file's name)"
    )
    parser.add_argument(
        "--name", help="name of the dataset (default: tfrecord, or its name in an earlier index)"
    )
    add_schema_options(parser)
    return parser


def _find(pattern: str, split: str | None) -> tuple[str, Files]:
    """The directory, and its files by split. RawDataError if file names do not contain their
    split."""
    pattern = pattern.rstrip("/") or "/"
    is_bucket = pattern.rpartition("/")[0].endswith(":/")
    files = matching_files(f"{pattern}/*" if is_bucket else pattern, open_storage(pattern))
    folder, slash, _ = next(iter(files)).rpartition("/")
    directory = folder or slash or "."
    listed = {path.rpartition("/")[2]: stat for path, stat in files.items()}
    if split:
        names = sorted(listed.keys() - {MANIFEST_FILE})
        return directory, {validate_split(split): {name: listed[name] for name in names}}
    by_split = files_by_name(pattern, listed)
    if not by_split:
        raise OptionError(
            f"{pattern}: none of {len(listed)} files ({', '.join(sorted(listed)[:3])}, ...) has a "
            "name like a TFRecord of a split. Give a pattern of the files of one split, and its "
            "name with --split."
        )
    return directory, by_split


def _check(storage: Storage, directory: str, files: Files) -> None:
    """Raises ConversionError for the output of a conversion, whose manifest contains more than an
    indexed one, and for a file in the place of an index that is none; OptionError for a compressed
    file."""
    manifest = find_manifest(directory, storage)
    if (manifest and not manifest.is_index) or storage.list(join(directory, "_shards")):
        raise ConversionError(
            f"{directory} is the output of a conversion, which writes its own index. If it has not "
            "finished, run its command again; infeed verify checks that it is complete."
        )
    listed = {
        join(directory, name): stat for named in files.values() for name, stat in named.items()
    }
    for path, compression in compressions(storage, listed).items():
        raise OptionError(
            f"{path} is compressed ({compression}): finding a record in it means reading "
            "everything before it. Re-shard: python -m converters.tfrecord_to_gcs "
            f"--raw-data-dir={directory} --output=..."
        )
    for split in files:
        path = join(directory, index_file(split))
        try:
            if storage.exists(path):
                decode_rows(storage.map(path))
            path = join(directory, parts_file(split))
            if storage.exists(path) and not storage.read(path).startswith(PARTS_BEGIN):
                raise ValueError("it has other content")
        except ValueError as e:
            raise ConversionError(
                f"{path} is not an index, so it is not replaced: {e}. Move it."
            ) from e


def _read(
    console: Console, storage: Storage, directory: str, files: Files, schema: Schema | None
) -> dict[str, list[IndexedFile]]:
    splits = {}
    with byte_bar(console) as progress:
        total = sum(stat.bytes for named in files.values() for stat in named.values())
        bar = progress.add_task("indexing", total=total)
        for split, named in sorted(files.items()):
            splits[split] = []
            advance = functools.partial(progress.advance, bar)
            for file in indexed_files(storage, directory, split, named, schema, advance):
                splits[split].append(file)
                for problem in file.problems:
                    say(console, f"damaged: {problem}")
            if not any(file.num_records or file.problems for file in splits[split]):
                raise EmptySplitError(
                    f"split {split!r} of {directory} has no records: its files are empty."
                )
    return splits


def _publish(
    storage: Storage,
    directory: str,
    splits: Mapping[str, Sequence[IndexedFile]],
    args: argparse.Namespace,
    schema: Schema | None,
) -> None:
    """Writes index files, then the manifest, which keeps its entries of other splits."""
    seen = schema or merged_schema(map(schema_of, splits.values()))

    def merged(earlier: Manifest | None) -> Manifest:
        earlier = earlier or Manifest(PASSED_ON, seen, {})
        others = {name: entry for name, entry in earlier.splits.items() if name not in splits}
        of_all = merged_schema([earlier.schema, seen]) if others and not schema else seen
        if others and schema and earlier.schema.features != schema.features:
            raise OptionError(
                f"{directory} has other splits ({', '.join(earlier.splits)}) whose schema differs "
                "from --schema-file. Index all splits again with it, in one command."
            )
        labels = earlier.labels
        if args.labels_file:
            labels = read_labels(args.labels_file, args.label_key, args.label_base, of_all)
        writer = f"{INDEX_WRITER} {version_of('infeed')}".rstrip()
        return Manifest(args.name or earlier.name, of_all, others | entries, labels, writer)

    entries = dict[str, SplitEntry]()
    for split, files in splits.items():
        storage.sweep(join(directory, "_index"), [f"{split}.*"])
        if storage.exists(parts := join(directory, parts_file(split))):  # of the index before
            storage.delete(parts)
        entries[split] = publish_index(storage, directory, split, files)
    storage.sweep(directory, [MANIFEST_FILE])
    update_manifest(storage, directory, merged)


if __name__ == "__main__":
    exit_with(main)
