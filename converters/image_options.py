"""The options of sources of image files of any kind: what is done to an image on its way."""

import argparse

from converters.image_files import ToJpeg
from converters.jpeg import VERIFY_LEVELS
from pipeline.shards.errors import OptionError

__all__ = ["add_image_options", "add_verify_option", "to_jpeg_of"]


def add_verify_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option of a source of JPEGs that stay as they are."""
    parser.add_argument(
        "--verify",
        choices=VERIFY_LEVELS,
        default="end",
        help="how closely each JPEG is looked at: its header, also its end marker, or every pixel (default: end)",
    )


def add_image_options(parser: argparse.ArgumentParser) -> None:
    """Adds --verify and the options that change images."""
    add_verify_option(parser)
    images = parser.add_argument_group("images", "A JPEG that none of this touches stays as it is, byte for byte.")
    images.add_argument("--max_side", type=int, help="pixels; larger images are scaled down to it and encoded again")
    images.add_argument(
        "--apply_orientation", action="store_true", help="turn images as their EXIF says, and encode these again"
    )
    images.add_argument(
        "--jpeg_quality",
        type=int,
        default=95,
        help="of images that are encoded: PNG, WebP, GIF, changed ones (default: 95)",
    )


def to_jpeg_of(args: argparse.Namespace) -> ToJpeg:
    """What the options ask for. Raises OptionError."""
    if args.max_side is not None and args.max_side < 1:
        raise OptionError(f"--max_side={args.max_side}: allowed are 1 and above.")
    if not 1 <= args.jpeg_quality <= 100:
        raise OptionError(f"--jpeg_quality={args.jpeg_quality}: allowed are 1 to 100.")
    return ToJpeg(args.verify, args.max_side, args.apply_orientation, args.jpeg_quality)
