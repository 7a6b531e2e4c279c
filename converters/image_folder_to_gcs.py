"""python -m converters.image_folder_to_gcs: folders of images, one per class -> ~100 MB TFRecord
shards.

Reads JPEG, PNG, WebP, GIF, BMP, TIFF and AVIF files; every image becomes a JPEG. Runs on Apache
Beam. The same command resumes an interrupted conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.images.image_options import add_image_options, to_jpeg_of
from converters.raw.files import NO_OTHERS
from converters.raw.splits import SPLITS, held_out_of
from pipeline.console.console import Console

EXAMPLES = (
    "--raw-data-dir=photos --output=shards --validation-fraction=0.2",
    "--raw-data-dir=photos --output=small --validation-fraction=0.2 --max-side=256",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    to_jpeg = to_jpeg_of(args)
    splits = chosen_splits(args, SPLITS)
    held_out = held_out_of(args)
    with scratch_of(args, args.raw_data_dir) as scratch:
        with Console().status("looking for class folders"):  # reads an archive to its end
            raw = find_folders(args.raw_data_dir, splits, held_out, scratch)
            converter = ImageFolderConverter(raw.classes, held_out, to_jpeg)
            if args.stratify:
                converter = converter.stratified(raw.sources)
        return run(args, converter, raw.sources, scratch, notices=raw.notices, used=NO_OTHERS)


def _parser() -> argparse.ArgumentParser:
    raw_data = (
        "directory of train/, validation/ (or val/) and test/, or of the class folders; or of "
        ".zip, .tar or .tar.gz files that contain them, one per split or one for all"
    )
    fraction = (
        "the directory has the class folders themselves: this fraction of the images, chosen by a "
        "hash of folder and file name"
    )
    split_by = (
        "which images are in one split: content (equal files; reads all of them once more for each "
        r"split), folder, or a pattern of <folder>/<file>, such as '(patient\d+)', whose "
        "parentheses match what they have in common (default: name, each file alone)"
    )
    parser = conversion_parser(
        "image_folder_to_gcs",
        __doc__,
        EXAMPLES,
        SPLITS,
        raw_data,
        fraction=fraction,
        split_by=split_by,
    )
    add_image_options(parser)
    return parser


if __name__ == "__main__":
    exit_with(main)
