"""python -m converters.idx_to_gcs: MNIST, Fashion-MNIST, KMNIST or EMNIST as downloaded -> TFRecord shards.

On Apache Beam: run the same command again and it goes on where it stopped."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import sys
from collections.abc import Iterable, Sequence

from beam_jobs.launch import exit_with
from converters.class_names import read_class_names
from converters.command_line import add_conversion_options, chosen_splits, run, scratch_of
from converters.idx import IdxConverter
from converters.idx_layouts import SPLITS, find_idx
from pipeline.shards.schemes import open_storage

__all__ = ["class_names", "main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or with --dry_run says what it would do. Returns the exit status. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    splits = chosen_splits(args, SPLITS)
    names = read_class_names(open_storage(args.label_file), args.label_file) if args.label_file else ()
    with scratch_of(args, args.raw_data_dir) as scratch:
        raw = find_idx(args.raw_data_dir, splits, args.prefix, scratch)
        converter = IdxConverter(names or class_names(raw.labels.values()), raw.labels, args.transpose)
        return run(args, rest, converter, raw.sources, scratch)


def class_names(labels: Iterable[bytes]) -> tuple[str, ...]:
    """ "0".."9", or as far as the labels of any split go."""
    return tuple(str(number) for number in range(max(9, *map(max, labels)) + 1))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m converters.idx_to_gcs",
        description="Converts idx files, as MNIST and its family come in, into shards of lossless PNGs.",
        allow_abbrev=False,
    )
    add_conversion_options(
        parser, SPLITS, "directory of train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-..., or their .gz"
    )
    parser.add_argument("--prefix", help="which data set, if there are several: emnist-letters, say")
    parser.add_argument(
        "--label_file", help="names of the classes 0, 1, ..., one a line (default: the numbers themselves)"
    )
    parser.add_argument(
        "--transpose", action="store_true", help="swap rows and columns: EMNIST's images are stored lying on their side"
    )
    return parser


if __name__ == "__main__":
    # DoFns and converters live in modules of their own: a class of __main__ would not be found by worker processes.
    sys.argv[0] = "idx_to_gcs"
    exit_with(main)
