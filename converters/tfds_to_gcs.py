"""python -m converters.tfds_to_gcs: any dataset that TFDS has prepared -> ~100 MB shards of the same records.

Records are copied byte for byte, and tfds.builder_from_directory reads the result with the original features. Runs
on Apache Beam. The same command resumes an interrupted conversion."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from beam_jobs.launch import exit_with
from beam_jobs.options import add_options
from converters.command_line import add_output_option, chosen_splits, run, scratch_of
from converters.tfds.prepared import DatasetName, find_tfds, prepare
from converters.tfrecord.converter import TfrecordConverter
from converters.tfrecord.options import add_record_options, set_num_shards
from pipeline.storage.storage import join
from pipeline.tools.command import Parser

__all__ = ["EXAMPLES", "main"]

EXAMPLES = (
    "--dataset=imagenet2012 --data_dir=tensorflow_datasets --output=shards",
    "--dataset=imagenet2012 --data_dir=tensorflow_datasets --output=shards --num_shards=train=4 --overwrite",
)


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry_run. Returns the exit status. Raises InfeedError."""
    args, rest = _parser().parse_known_args(argv)
    dataset = DatasetName.parse(args.dataset)
    data_dir = args.data_dir or os.environ.get("TFDS_DATA_DIR") or str(Path("~/tensorflow_datasets").expanduser())
    if args.download:
        prepare(dataset, data_dir)
    with scratch_of(args, join(data_dir, dataset.name)) as scratch:
        raw = find_tfds(dataset, data_dir, chosen_splits(args), scratch, args.trust_features)
        set_num_shards(args, raw.sources)
        return run(args, rest, TfrecordConverter(raw.name, raw.schema, raw.labels, args.check), raw.sources, scratch)


def _parser() -> argparse.ArgumentParser:
    usage = "%(prog)s --dataset NAME --output DIR [options]"
    parser = Parser("converters.tfds_to_gcs", __doc__, EXAMPLES, usage=usage)
    parser.add_argument(
        "--dataset", required=True, metavar="NAME", help="name, name/config, name:1.0.0 or name/config:1.0.0"
    )
    parser.add_argument("--data_dir", help="where TFDS prepared it (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)")
    parser.add_argument("--download", action="store_true", help="let TFDS download and prepare it first, if necessary")
    parser.add_argument(
        "--trust_features",
        action="append",
        default=[],
        metavar="MODULE",
        help="let TFDS import this module, in which you wrote features of your own; may be repeated",
    )
    add_output_option(parser)
    parser.add_argument("--splits", help="comma-separated (default: all)")
    add_record_options(parser)
    add_options(parser)
    return parser


if __name__ == "__main__":
    exit_with(main)
