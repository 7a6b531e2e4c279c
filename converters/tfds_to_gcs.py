"""python -m converters.tfds_to_gcs: any dataset that TFDS has prepared -> ~100 MB shards of the
same records.

Records are copied byte for byte, and tfds.builder_from_directory reads the result with the original
features. Runs on Apache Beam. The same command resumes an interrupted conversion."""

# The only converter that needs TFDS, and so TensorFlow: only TFDS knows how a record encodes a
# feature. The launcher imports it, workers do not. The data directory is read through our Storage.

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import argparse
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beam_jobs.converter import Source
from beam_jobs.launch import exit_with
from beam_jobs.scratch import Scratch
from converters.command_line import chosen_splits, conversion_parser, parsed, run, scratch_of
from converters.tfrecord import TfrecordConverter, chosen_files, sources_of
from converters.tfrecord_to_gcs import add_record_options, set_num_shards
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.naming import validate_split
from pipeline.sources.named_splits import Files, tfds_files, tfds_labels
from pipeline.sources.tfds_features import described_by_tfds, load_tfds
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Stat, Storage, join

EXAMPLES = (
    "--dataset=imagenet2012 --data-dir=tensorflow_datasets --output=shards",
    (
        "--dataset=imagenet2012 --data-dir=tensorflow_datasets --output=shards "
        "--num-shards=train=4 --overwrite"
    ),
)
_NAME = re.compile(r"(\w+)(?:/([\w.+-]+))?(?::(\d+\.\d+\.\d+))?")
_VERSION = re.compile(r"\d+\.\d+\.\d+")


def main(argv: Sequence[str] | None = None) -> int:
    """Converts, or reports a --dry-run. Returns the exit status. Raises InfeedError."""
    args = parsed(_parser(), argv)
    dataset = DatasetName.parse(args.dataset)
    data_dir = (
        args.data_dir
        or os.environ.get("TFDS_DATA_DIR")
        or str(Path("~/tensorflow_datasets").expanduser())
    )
    if args.download:
        prepare(dataset, data_dir)
    with scratch_of(args, join(data_dir, dataset.name)) as scratch:
        converter, sources = find_tfds(
            dataset, data_dir, chosen_splits(args), scratch, args.trust_features
        )
        set_num_shards(args, sources)
        return run(args, replace(converter, check=args.check), sources, scratch)


def _parser() -> argparse.ArgumentParser:
    parser = conversion_parser(
        "tfds_to_gcs",
        __doc__,
        EXAMPLES,
        (),
        "name, name/config, name:1.0.0 or name/config:1.0.0",
        raw_option="--dataset NAME",
    )
    parser.add_argument(
        "--data-dir",
        help="where TFDS prepared it (default: $TFDS_DATA_DIR or ~/tensorflow_datasets)",
    )
    parser.add_argument(
        "--download",
        action="store_true",
        help="let TFDS download and prepare it first, if necessary",
    )
    parser.add_argument(
        "--trust-features",
        action="append",
        default=[],
        metavar="MODULE",
        help=(
            "let TFDS import this module, in which you wrote features of your own; may be repeated"
        ),
    )
    add_record_options(parser)
    return parser


@dataclass(frozen=True)
class DatasetName:
    """name[/config][:version], as in TFDS."""

    name: str
    config: str | None = None
    version: str | None = None

    @staticmethod
    def parse(text: str) -> "DatasetName":
        """The parts of --dataset. Raises OptionError."""
        match = _NAME.fullmatch(text)
        if not match:
            raise OptionError(
                f"--dataset={text}: write name, name/config, name:1.0.0 or name/config:1.0.0."
            )
        return DatasetName(*match.groups())

    def __str__(self) -> str:
        return (
            self.name
            + (f"/{self.config}" if self.config else "")
            + (f":{self.version}" if self.version else "")
        )


def find_tfds(
    dataset: DatasetName,
    data_dir: str,
    splits: Sequence[str],
    scratch: Scratch | None,
    trusted: Sequence[str] = (),
) -> tuple[TfrecordConverter, Sequence[Source]]:
    """The converter and the sources of a prepared dataset. splits, scratch: see
    converters.tfrecord.find_raw. trusted: modules of features that TFDS may import, in addition to
    its own.

    Raises RawDataError if it is missing or incomplete, OptionError, InfeedError without TFDS."""
    storage = open_storage(data_dir)
    directory = _directory(storage, data_dir, dataset)
    listed = storage.list(directory)
    tfds = tfds_files(storage, directory, listed)
    if not tfds:
        raise _not_prepared(
            dataset, data_dir, f"{directory} has no features.json and dataset_info.json"
        )
    described = described_by_tfds(directory, tfds, trusted)
    files = chosen_files(directory, _files(directory, described.splits, listed), splits)
    converter = TfrecordConverter(dataset.name, described.schema, tfds_labels(tfds))
    return converter, sources_of(directory, files, scratch)


def _directory(storage: Storage, data_dir: str, dataset: DatasetName) -> str:
    """<data_dir>/<name>[/<config>]/<version>, by default the newest version."""
    directory = join(data_dir, dataset.name)
    _, folders = storage.entries(directory)
    configs = [
        folder
        for folder in folders
        if not _VERSION.fullmatch(folder) and not folder.startswith("incomplete")
    ]
    config = dataset.config
    if config is None and configs and len(configs) == len(folders):
        if len(configs) > 1:
            raise OptionError(
                f"{directory} has several configs. Choose one: --dataset={dataset.name}/CONFIG, "
                f"CONFIG being one of {', '.join(configs)}."
            )
        config = configs[0]
    if config is not None:
        directory = join(directory, config)
        _, folders = storage.entries(directory)
    versions = sorted(
        filter(_VERSION.fullmatch, folders),
        key=lambda version: tuple(map(int, version.split("."))),
    )
    if not versions:
        raise _not_prepared(dataset, data_dir, f"{directory} has no version of it")
    if dataset.version and dataset.version not in versions:
        raise _not_prepared(dataset, data_dir, f"{directory} has {', '.join(versions)}")
    return join(directory, dataset.version or versions[-1])


def _not_prepared(dataset: DatasetName, data_dir: str, problem: str) -> RawDataError:
    return RawDataError(
        f"{dataset} is not prepared: {problem}. Give --download to let TFDS prepare it, or prepare "
        f"it in Python: tfds.builder({str(dataset)!r}, "
        f"data_dir={data_dir!r}).download_and_prepare()"
    )


def _files(
    directory: str, names: Mapping[str, Collection[str]], listed: Mapping[str, Stat]
) -> Files:
    files_by_split: dict[str, dict[str, Stat]] = {}
    for split, files in names.items():
        validate_split(split)
        if missing := [name for name in files if name not in listed]:
            raise RawDataError(
                f"{directory}: {len(missing)} of {len(files)} files of {split!r} are missing, the "
                f"first is {missing[0]}. Copy or prepare the dataset again."
            )
        files_by_split[split] = {name: listed[name] for name in files}
    return files_by_split


def prepare(dataset: DatasetName, data_dir: str) -> None:
    """Downloads and prepares a dataset with TFDS, unless it is prepared. Raises RawDataError,
    InfeedError."""
    module = load_tfds()
    try:
        # Not builder(): it may read a description that is in data_dir already, and import what that
        # names.
        builder = module.builder_cls(dataset.name)(
            data_dir=data_dir, config=dataset.config, version=dataset.version
        )
        builder.download_and_prepare(file_format="tfrecord")
    except Exception as e:  # of any class: a builder runs its own code
        raise RawDataError(
            f"TFDS cannot prepare {dataset} in {data_dir}: {type(e).__name__}: {str(e)[:1000]}"
        ) from e


if __name__ == "__main__":
    exit_with(main)
