"""python -m converters.cifar_to_gcs: CIFAR-10 or CIFAR-100, the binary version as downloaded -> TFRecord shards.

On Apache Beam: run the same command again and it goes on where it stopped."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import sys
from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.cifar import CifarConverter
from converters.cifar_layouts import SPLITS, find_cifar
from converters.command_line import add_conversion_options, chosen_splits, run, scratch_of

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or with --dry_run says what it would do. Returns the exit status. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    splits = chosen_splits(args, SPLITS)
    with scratch_of(args, args.raw_data_dir) as scratch:
        raw = find_cifar(args.raw_data_dir, splits, scratch)
        return run(args, rest, CifarConverter(raw.names, raw.coarse_names), raw.sources, scratch)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.cifar_to_gcs",
        description="Converts CIFAR-10 or CIFAR-100, in the binary version, into shards of lossless PNGs.",
        allow_abbrev=False,
    )
    add_conversion_options(
        parser, SPLITS, "directory of cifar-10-binary.tar.gz or cifar-100-binary.tar.gz, or of what they unpack to"
    )
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "cifar_to_gcs"
    exit_with(main)
