"""python -m converters.idx_to_gcs: MNIST, Fashion-MNIST, KMNIST or EMNIST as downloaded -> TFRecord
shards.

Reads idx files; images become lossless PNGs. Runs on Apache Beam. The same command resumes an
interrupted conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
from collections.abc import Iterable, Sequence

from beam_jobs.launch import exit_with
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.pixels.idx import SPLITS, IdxConverter, find_idx
from converters.raw.class_names import read_class_names

EXAMPLES = (
    "--raw-data-dir=mnist --output=shards",
    "--raw-data-dir=emnist --output=letters --prefix=emnist-letters --transpose",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    splits = chosen_splits(args, SPLITS)
    names = read_class_names(args.label_file) if args.label_file else ()
    with scratch_of(args, args.raw_data_dir) as scratch:
        sources, labels = find_idx(args.raw_data_dir, splits, args.prefix, scratch)
        converter = IdxConverter(names or class_names(labels.values()), labels, args.transpose)
        return run(args, converter, sources, scratch, used=r"-ubyte|\.txt$")


def class_names(labels: Iterable[bytes]) -> tuple[str, ...]:
    """ "0".."9", or up to the largest label of any split."""
    return tuple(str(number) for number in range(max(9, *map(max, labels)) + 1))


def _parser() -> argparse.ArgumentParser:
    raw_data = (
        "directory of train-images-idx3-ubyte, train-labels-idx1-ubyte and t10k-..., or their .gz"
    )
    parser = conversion_parser("idx_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data)
    parser.add_argument(
        "--prefix", help="which dataset, if there are several; for example emnist-letters"
    )
    parser.add_argument(
        "--label-file", help="names of the classes 0, 1, ..., one per line (default: the numbers)"
    )
    parser.add_argument(
        "--transpose", action="store_true", help="swap rows and columns, as EMNIST needs"
    )
    return parser


if __name__ == "__main__":
    exit_with(main)
