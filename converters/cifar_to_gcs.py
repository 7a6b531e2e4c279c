"""python -m converters.cifar_to_gcs: CIFAR-10 or CIFAR-100, the binary version as downloaded ->
TFRecord shards.

Images become lossless PNGs. Runs on Apache Beam. The same command resumes an interrupted
conversion."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

from collections.abc import Sequence

from beam_jobs.launch import exit_with
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.pixels.cifar import SPLITS, find_cifar

EXAMPLES = (
    "--raw-data-dir=cifar-10 --output=shards",
    "--raw-data-dir=cifar-10 --output=test_shards --splits=test",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    raw_data = (
        "directory of cifar-10-binary.tar.gz or cifar-100-binary.tar.gz, or of their unpacked files"
    )
    parser = conversion_parser("cifar_to_gcs", __doc__, EXAMPLES, SPLITS, raw_data)
    args = parsed(parser, argv)
    splits = chosen_splits(args, SPLITS)
    with scratch_of(args, args.raw_data_dir) as scratch:
        converter, sources = find_cifar(args.raw_data_dir, splits, scratch)
        return run(args, converter, sources, scratch, used="cifar|meta|names|readme")


if __name__ == "__main__":
    exit_with(main)
