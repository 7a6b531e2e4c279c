"""python -m converters.image_folder_to_gcs: folders of images, one a class -> ~100 MB TFRecord shards.

On Apache Beam: run the same command again and it goes on where it stopped."""

import argparse
import sys
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import add_conversion_options, add_verify_option, chosen_splits, run
from converters.image_files import ToJpeg
from converters.image_folder import ImageFolderConverter
from converters.image_folder_layouts import SPLITS, find_folders
from pipeline.shards.errors import OptionError

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> None:
    """Converts, or with --dry_run says what it would do. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    to_jpeg = ToJpeg(args.verify, args.max_side, args.apply_orientation, args.jpeg_quality)
    if args.max_side is not None and args.max_side < 1:
        raise OptionError(f"--max_side={args.max_side}: allowed are 1 and above.")
    if not 1 <= args.jpeg_quality <= 100:
        raise OptionError(f"--jpeg_quality={args.jpeg_quality}: allowed are 1 to 100.")
    splits = chosen_splits(args.splits, SPLITS) if args.splits is not None else []
    raw = find_folders(args.raw_data_dir, splits, args.validation_fraction)
    run(args, rest, ImageFolderConverter(raw.classes, args.validation_fraction, to_jpeg), raw.sources)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.image_folder_to_gcs",
        description="Converts folders of JPEG, PNG and WebP images, one a class, into shards in tensorflow/tpu's keys.",
        allow_abbrev=False,
    )
    add_conversion_options(
        parser, SPLITS, "directory of train/, validation/ (or val/) and test/, or of the class folders themselves"
    )
    add_verify_option(parser)
    parser.add_argument(
        "--validation_fraction",
        type=float,
        help="the directory holds the class folders themselves: this part of the images, by a hash of folder and file "
        "name, becomes the validation split, the rest train (0: all is train)",
    )
    images = parser.add_argument_group("images", "A JPEG that none of this touches stays as it is, byte for byte.")
    images.add_argument("--max_side", type=int, help="pixels; larger images are scaled down to it and encoded again")
    images.add_argument(
        "--apply_orientation", action="store_true", help="turn images as their EXIF says, and encode these again"
    )
    images.add_argument(
        "--jpeg_quality", type=int, default=95, help="of images that are encoded: PNG, WebP, changed ones (default: 95)"
    )
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "image_folder_to_gcs"
    exit_with(main)
