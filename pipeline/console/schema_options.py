"""The options about the schema of TFRecord files, which indexing and converting them share."""

import argparse

from pipeline.errors import OptionError


def add_schema_options(parser: argparse.ArgumentParser) -> None:
    """Adds --schema-file, --labels-file, --label-key and --label-base."""
    options = parser.add_argument_group("records")
    options.add_argument(
        "--schema-file", help="JSON of the schema of all records, or a manifest (default: inferred)"
    )
    options.add_argument("--labels-file", help="names of the labels, one per line")
    options.add_argument("--label-key", help="the feature that holds the labels")
    options.add_argument(
        "--label-base", type=int, default=0, help="the label of the first name (default: 0)"
    )


def check_label_options(args: argparse.Namespace) -> None:
    """Raises OptionError if only one of --labels-file and --label-key is given."""
    if (args.labels_file is None) != (args.label_key is None):
        raise OptionError("--labels-file and --label-key belong together: give both, or neither.")
