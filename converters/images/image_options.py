"""The options of converters of image files: what they check of an image, and how they change it."""

import argparse

from pipeline.checks import check_number
from pipeline.raw.image_files import ToJpeg
from pipeline.raw.jpeg import VERIFY_LEVELS, check_jpegtran


def add_jpeg_options(parser: argparse.ArgumentParser) -> None:
    """Adds --verify and --restart-markers."""
    parser.add_argument(
        "--verify",
        choices=VERIFY_LEVELS,
        default="end",
        help=(
            "what to check of each JPEG: its header, header and end marker, or every pixel "
            "(default: end)"
        ),
    )
    parser.add_argument(
        "--restart-markers",
        action="store_true",
        help=(
            "rewrite JPEGs without loss so that random crops decode little else; needs jpegtran of "
            "libjpeg-turbo"
        ),
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Adds add_jpeg_options, and those that change images."""
    add_jpeg_options(parser)
    images = parser.add_argument_group(
        "images",
        "A JPEG stays as it is, byte for byte, unless these or --restart-markers change it.",
    )
    images.add_argument(
        "--max-side", type=int, help="pixels; larger images are scaled down and encoded again"
    )
    images.add_argument(
        "--apply-orientation", action="store_true", help="turn images upright according to EXIF"
    )
    images.add_argument(
        "--jpeg-quality",
        type=int,
        default=95,
        help="of changed JPEG files and of other formats (default: 95)",
    )


def to_jpeg_of(args: argparse.Namespace) -> ToJpeg:
    """The conversion that the options choose. Raises OptionError."""
    check_number("--max-side", args.max_side, at_least=1)
    check_number("--jpeg-quality", args.jpeg_quality, at_least=1, at_most=100)
    if args.restart_markers:
        check_jpegtran()
    return ToJpeg(
        args.verify,
        args.max_side,
        args.apply_orientation,
        args.jpeg_quality,
        args.restart_markers,
    )
