"""The options of sources of image files of any kind: what is done to an image on its way."""

import argparse

from converters.command_line import add_verify_option
from converters.image_files import ToJpeg
from pipeline.shards.errors import OptionError

__all__ = ["add_image_options", "to_jpeg_of"]


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
