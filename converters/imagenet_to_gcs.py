"""python -m converters.imagenet_to_gcs: ImageNet as it was downloaded or extracted -> ~100 MB
TFRecord shards.

The shards have tensorflow/tpu's schema, and every image is a JPEG. Accepts the command lines of
tensorflow/tpu's program of this name. Runs on Apache Beam. The same command resumes an interrupted
conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import dataclasses
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.imagenet.boxes import read_boxes
from converters.imagenet.converter import SPLITS, ImagenetConverter
from converters.imagenet.layouts import (
    FULL_SET,
    check_full_set,
    find_raw,
    ilsvrc2012_synsets,
    read_synsets,
)
from converters.imagenet.records import TFDS_DIRECTORY
from converters.images.image_options import add_jpeg_options
from pipeline.console.console import Console, say
from pipeline.errors import OptionError
from pipeline.raw.jpeg import check_jpegtran
from pipeline.storage.storage import join

EXAMPLES = (
    "--raw-data-dir=ILSVRC2012 --output=shards --dry-run",
    "--raw-data-dir=ILSVRC2012 --output=tensorflow_datasets --schema=tfds",
)

# Flags of tensorflow/tpu's imagenet_to_gcs.py that still parse, so that old command lines run.
_ANCESTOR = {
    "--local-scratch-dir": (
        "ignored: nothing is extracted or staged any more. Records are read inside the tars, and "
        "shards are written to their final place."
    ),
    "--gcs-upload": "ignored: only --output decides where shards are written.",
    "--nogcs-upload": "ignored: for shards on disk, give a local directory as --output.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    console = Console(stderr=True)
    for flag, note in _ANCESTOR.items():
        if getattr(args, flag.lstrip("-").replace("-", "_")):
            say(console, f"note: {flag}: {note}")
    if args.project:  # a flag of the original, which is also one of Beam's for Google Cloud runners
        args.of_beam.append(f"--project={args.project}")
    splits = chosen_splits(args, SPLITS) or SPLITS
    converter = _converter(args)
    if args.schema == "tfds":
        args.output = join(args.output, TFDS_DIRECTORY)
    with scratch_of(args, args.raw_data_dir) as scratch:
        raw = find_raw(args.raw_data_dir, splits, converter.synsets, scratch)
        if args.full_set:
            check_full_set(raw, splits)
        converter = dataclasses.replace(converter, validation_labels=raw.validation_labels)
        expected = {split: FULL_SET[split] for split in splits} if args.full_set else None
        used = r"\.(txt|csv)$|devkit"
        return run(args, converter, raw.sources, scratch, expected, used=used)


def _converter(args: argparse.Namespace) -> ImagenetConverter:
    tables = tuple(table for table in (args.bounding_boxes or "").split(",") if table)
    if tables and args.schema == "tfds":
        raise OptionError(
            "--bounding-boxes: --schema=tfds has no features for them. Use --schema=tpu."
        )
    if args.full_set and args.label_file:
        raise OptionError(
            "--full-set means ILSVRC2012's own 1000 classes: leave out --label-file, or --full-set."
        )
    classes = read_synsets(args.label_file) if args.label_file else ilsvrc2012_synsets()
    if args.restart_markers:
        check_jpegtran()
    read_boxes(tables)  # so that errors are raised here, not in a worker
    return ImagenetConverter(
        tuple(classes),
        verify=args.verify,
        words=tuple(classes.values()) if any(classes.values()) else (),
        form_name="tpu+boxes" if tables else args.schema,
        box_tables=tables,
        restart_markers=args.restart_markers,
    )


def _parser() -> argparse.ArgumentParser:
    raw_data = (
        "directory of the original tars or of train/ and validation/, and of synset_labels.txt"
    )
    parser = conversion_parser("imagenet_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data)
    add_jpeg_options(parser)
    parser.add_argument(
        "--label-file",
        help=(
            "all classes: one synset per line, optionally followed by a description (default: the "
            "1000 of ILSVRC2012)"
        ),
    )
    parser.add_argument(
        "--schema",
        choices=("tpu", "tfds"),
        default="tpu",
        help=(
            "tensorflow/tpu's keys, or TFDS's imagenet2012, which tfds.load('imagenet2012', "
            f"data_dir=...) reads: its shards are in {TFDS_DIRECTORY} under --output (default: tpu)"
        ),
    )
    parser.add_argument(
        "--bounding-boxes",
        help=(
            "comma-separated tables of boxes to add to records: Kaggle's LOC_train_solution.csv "
            "and LOC_val_solution.csv, or lines of name,xmin,ymin,xmax,ymax"
        ),
    )
    parser.add_argument(
        "--full-set",
        action="store_true",
        help=(
            "fail unless ILSVRC2012 is complete: every class, 1,281,167 and 50,000 images, the "
            "official labels"
        ),
    )
    old = parser.add_argument_group("flags of the original imagenet_to_gcs.py")
    old.add_argument("--project", help="Google Cloud project; only Google Cloud runners use it")
    old.add_argument("--local-scratch-dir", help="ignored: nothing is staged")
    for flag in ("--gcs-upload", "--nogcs-upload"):
        old.add_argument(flag, action="store_true", help="ignored: --output decides")
    return parser


if __name__ == "__main__":
    exit_with(main)
