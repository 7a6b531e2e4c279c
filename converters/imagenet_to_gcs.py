"""python -m converters.imagenet_to_gcs: ImageNet as it was downloaded or extracted -> ~100 MB TFRecord shards.

The command line of its ancestor, on Apache Beam: run the same command again and it goes on where it stopped."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from beam_jobs.launch import exit_with
from converters.command_line import add_conversion_options, add_verify_option, chosen_splits, run
from converters.imagenet import SPLITS, ImagenetConverter
from converters.imagenet_layouts import find_raw
from converters.synsets import ilsvrc2012_synsets, read_synsets
from pipeline.shards.schemes import open_storage

__all__ = ["main"]

# Flags of tensorflow/tpu's imagenet_to_gcs.py: accepted, so that old command lines run, with a word on what they do.
_ANCESTOR = {
    "--local_scratch_dir": "nothing is extracted or staged any more: records are read inside the tars, shards are "
    "written where they belong. It is ignored.",
    "--gcs_upload": "--gcs_output_path alone decides where shards go. It is ignored.",
    "--nogcs_upload": "give a local directory as --gcs_output_path for shards on disk. It is ignored.",
}


def main(argv: Sequence[str] | None = None) -> None:
    """Converts, or with --dry_run says what it would do. Raises InfeedError."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    console = Console(stderr=True)
    for flag in (flag for flag in _ANCESTOR if getattr(args, flag.lstrip("-"))):
        console.print(f"note: {flag}: {_ANCESTOR[flag]}", markup=False, soft_wrap=True)
    if args.project:  # an option of ours for the ancestor's sake, and of Beam's for Google Cloud runners
        rest = [*rest, f"--project={args.project}"]
    splits = chosen_splits(args.splits, SPLITS) if args.splits is not None else SPLITS
    label_file = args.label_file
    synsets = read_synsets(open_storage(label_file), label_file) if label_file else ilsvrc2012_synsets()
    raw = find_raw(args.raw_data_dir, splits, synsets, None if args.dry_run else args.gcs_output_path)
    run(args, rest, ImagenetConverter(synsets, raw.validation_labels, args.verify), raw.sources, raw.scratch)


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
    parser.add_argument("--label_file", help="all classes, one synset a line (default: the 1000 of ILSVRC2012)")
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
