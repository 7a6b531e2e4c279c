"""Command-line options of converters of image files: checks of each image, and changes to it."""

import argparse

from pipeline.checks import check_number
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import VERIFY_LEVELS


def add_verify_option(parser: argparse.ArgumentParser) -> None:
    """Adds --verify."""
    parser.add_argument(
        "--verify",
        choices=VERIFY_LEVELS,
        default="end",
        help="what to check of each JPEG: its header, header and end marker, or every pixel (default: end)",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Adds --verify and the options that change images."""
    add_verify_option(parser)
    images = parser.add_argument_group(
        "images", "A JPEG that these options do not change stays as it is, byte for byte."
    )
    images.add_argument("--max-side", type=int, help="pixels; larger images are scaled down and encoded again")
    images.add_argument("--apply-orientation", action="store_true", help="turn images upright according to EXIF")
    images.add_argument(
        "--jpeg-quality", type=int, default=95, help="of PNG, WebP, GIF and changed JPEG files (default: 95)"
    )


def to_jpeg_of(args: argparse.Namespace) -> ToJpeg:
    """The conversion that the options choose. Raises OptionError."""
    check_number("--max-side", args.max_side, at_least=1)
    check_number("--jpeg-quality", args.jpeg_quality, at_least=1, at_most=100)
    return ToJpeg(args.verify, args.max_side, args.apply_orientation, args.jpeg_quality)
