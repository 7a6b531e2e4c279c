"""python -m converters.imagenet_to_gcs: ImageNet as it was downloaded or extracted -> ~100 MB TFRecord shards.

The command line of its ancestor, on Apache Beam: run the same command again and it goes on where it stopped."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.boxes import read_boxes
from converters.command_line import add_conversion_options, chosen_splits, run, scratch_of
from converters.image_options import add_verify_option
from converters.imagenet import SPLITS, ImagenetConverter
from converters.imagenet_full import FULL_SET, check_full_set
from converters.imagenet_layouts import find_raw
from converters.imagenet_records import TFDS_DIRECTORY
from converters.synsets import ilsvrc2012_synsets, read_synsets
from pipeline.command import Console
from pipeline.shards.errors import OptionError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import join

__all__ = ["main"]

_ORIGINAL_SHARDS = {"train": 1024, "validation": 128}

# Flags of tensorflow/tpu's imagenet_to_gcs.py: accepted, so that old command lines run, with a word on what they do.
_ANCESTOR = {
    "--local_scratch_dir": "nothing is extracted or staged any more: records are read inside the tars, shards are "
    "written where they belong. It is ignored.",
    "--gcs_upload": "--gcs_output_path alone decides where shards go. It is ignored.",
    "--nogcs_upload": "give a local directory as --gcs_output_path for shards on disk. It is ignored.",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or with --dry_run says what it would do. Returns the exit status. Raises InfeedError."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    console = Console(stderr=True)
    for flag in (flag for flag in _ANCESTOR if getattr(args, flag.lstrip("-"))):
        console.print(f"note: {flag}: {_ANCESTOR[flag]}", markup=False, soft_wrap=True)
    if args.project:  # an option of ours for the ancestor's sake, and of Beam's for Google Cloud runners
        rest = [*rest, f"--project={args.project}"]
    splits = chosen_splits(args, SPLITS) or SPLITS
    if args.original_shards:
        _set_original_shards(args)
    converter = _converter(args)
    if args.schema == "tfds":
        args.gcs_output_path = join(args.gcs_output_path, TFDS_DIRECTORY)
    with scratch_of(args, args.raw_data_dir) as scratch:
        raw = find_raw(args.raw_data_dir, splits, converter.synsets, scratch)
        if args.full_set:
            check_full_set(raw, splits)
        converter = dataclasses.replace(converter, validation_labels=raw.validation_labels)
        expected = {split: FULL_SET[split] for split in splits} if args.full_set else None
        return run(args, rest, converter, raw.sources, scratch, expected)


def _converter(args: argparse.Namespace) -> ImagenetConverter:
    tables = tuple(table for table in (args.bounding_boxes or "").split(",") if table)
    if tables and args.schema == "tfds":
        raise OptionError("--bounding_boxes: --schema=tfds has no place for them. Take --schema=tpu.")
    if args.full_set and args.label_file:
        raise OptionError("--full_set means ILSVRC2012's own 1000 classes: leave out --label_file, or --full_set.")
    label_file = args.label_file
    classes = read_synsets(open_storage(label_file), label_file) if label_file else ilsvrc2012_synsets()
    read_boxes(tables)  # what is wrong with them is told now, not by a worker
    return ImagenetConverter(
        synsets=tuple(classes),
        verify=args.verify,
        words=tuple(classes.values()) if any(classes.values()) else (),
        form_name="tpu+boxes" if tables else args.schema,
        box_tables=tables,
    )


def _set_original_shards(args: argparse.Namespace) -> None:
    for split, number in _ORIGINAL_SHARDS.items():
        if getattr(args, f"num_{split}_shards") is not None:
            raise OptionError(f"--original_shards and --num_{split}_shards: give one of them.")
        setattr(args, f"num_{split}_shards", number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.imagenet_to_gcs",
        description="Converts ImageNet (original tars or extracted folders) into shards in tensorflow/tpu's schema.",
        allow_abbrev=False,
    )
    add_conversion_options(
        parser, SPLITS, "directory of the original tars or of train/ and validation/, and of synset_labels.txt"
    )
    add_verify_option(parser)
    parser.add_argument(
        "--label_file",
        help="all classes, one synset a line, and words for it if there are any (default: the 1000 of ILSVRC2012)",
    )
    parser.add_argument(
        "--schema",
        choices=("tpu", "tfds"),
        default="tpu",
        help=f"tensorflow/tpu's keys, or TFDS's own imagenet2012, which tfds.load('imagenet2012', data_dir=...) reads: "
        f"its shards are under {TFDS_DIRECTORY} in --gcs_output_path (default: tpu)",
    )
    parser.add_argument(
        "--bounding_boxes",
        help="comma-separated tables of boxes, which records then hold: Kaggle's LOC_train_solution.csv and "
        "LOC_val_solution.csv, or lines of name,xmin,ymin,xmax,ymax",
    )
    parser.add_argument(
        "--full_set",
        action="store_true",
        help="stop unless all of ILSVRC2012 is there: every class, 1,281,167 and 50,000 images, the official labels",
    )
    parser.add_argument(
        "--original_shards", action="store_true", help="1024 train and 128 validation shards, as the original wrote"
    )
    old = parser.add_argument_group("flags of the original imagenet_to_gcs.py")
    old.add_argument("--project", help="Google Cloud project: used by Google Cloud runners alone")
    old.add_argument("--local_scratch_dir", help="ignored: nothing is staged any more")
    for flag in ("--gcs_upload", "--nogcs_upload"):
        old.add_argument(flag, action="store_true", help="ignored: --gcs_output_path decides")
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "imagenet_to_gcs"
    exit_with(main)
