"""python -m converters.image_folder_to_gcs: folders of images, one a class -> ~100 MB TFRecord shards.

On Apache Beam: run the same command again and it goes on where it stopped."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import sys
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import add_conversion_options, chosen_splits, run, scratch_of
from converters.image_folder import ImageFolderConverter
from converters.image_folder_layouts import SPLITS, find_folders
from converters.image_options import add_image_options, to_jpeg_of
from pipeline.command import Console

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or with --dry_run says what it would do. Returns the exit status. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    to_jpeg = to_jpeg_of(args)
    splits = chosen_splits(args, SPLITS)
    with scratch_of(args, args.raw_data_dir) as scratch:
        with Console().status("looking for class folders"):  # an archive is read to its end for them
            raw = find_folders(args.raw_data_dir, splits, args.validation_fraction, scratch)
        converter = ImageFolderConverter(raw.classes, args.validation_fraction, to_jpeg)
        return run(args, rest, converter, raw.sources, scratch, notices=raw.notices)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.image_folder_to_gcs",
        description="Converts folders of JPEG, PNG, WebP and GIF files, a class each, into shards.",
        allow_abbrev=False,
    )
    add_conversion_options(
        parser,
        SPLITS,
        "directory of train/, validation/ (or val/) and test/, or of the class folders; or of .zip, .tar or .tar.gz "
        "files with them inside, one for each split or one for all",
    )
    parser.add_argument(
        "--validation_fraction",
        type=float,
        help="the directory holds the class folders themselves: this part of the images, by a hash of folder and file "
        "name, becomes the validation split, the rest train (0: all is train)",
    )
    add_image_options(parser)
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "image_folder_to_gcs"
    exit_with(main)
