"""The records of indexed TFRecord shards as a tf.data.Dataset of one host, made of tf.data's parts.

pipeline.tf_data offers it."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pipeline.checks import check_number
from pipeline.errors import CorruptRecordError, EmptySplitError, OptionError
from pipeline.hosts import ONE_HOST, Hosts
from pipeline.inputs.exact_ops import OURS
from pipeline.shards.frames import crc32c
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.split_index import SplitIndex
from pipeline.sources.concatenated import Concatenated
from pipeline.sources.dataset import Dataset
from pipeline.sources.indexed_records import IndexedRecords
from pipeline.sources.open_dataset import Data, open_dataset
from pipeline.sources.records import Records
from pipeline.spec import DTYPES, chosen_specs
from pipeline.storage.storage import join
from pipeline.tf_quiet import tf

BUFFER_BYTES = 8 << 20  # of each file, at most; tf.data's 256 KB are slow on a network
BUFFERS_BYTES = 128 << 20  # of all files that are read by turns
STREAMS = 128  # files that are read by turns
IN_ORDER = 64  # records that are parsed together

stateless: Any = tf.random.experimental  # pyright: ignore[reportAttributeAccessIssue]


class Piece(NamedTuple):
    """Consecutive records of a shard. path: of the shard. of_split: its index, row: of the first
    one there. size: how many they are. first: the number of the first one in the data."""

    path: str
    of_split: SplitIndex
    row: int
    size: int
    first: int = 0


def examples(
    data: Data | Sequence[Data],
    split: str | None = None,
    *,
    hosts: Hosts = ONE_HOST,
    keys: Iterable[str] | None = None,
    shuffle: bool = False,
    seed: int = 0,
    window_records: int = 1024,
    epochs: int | None = None,
) -> tf.data.Dataset:
    """The records of this host, parsed: a tf.data.Dataset of TFRecordDataset, interleave and map,
    for programs of your own.

    Elements are dicts of tensors: the features; `_index` int32, the number of the record in the
    data; and `_crc` uint32, its checksum, which must be that in the index. The dataset can be saved
    with tf.train.Checkpoint, knows its cardinality, and tf.distribute does not shard it again. The
    checksums are computed in this process, in Python, so tf.data's service cannot run it.

    data, split: as in open_dataset, of indexed TFRecord files where TensorFlow can read.
    hosts: each gets complete files, balanced by their records, or ranges of records where there are
        fewer files than hosts; the same in every epoch. Of batches made of it, say per_host=True.
    keys: features to parse. None: all. (): none; the element's `record` has the bytes, as it has
        where records are not tf.train.Examples.
    shuffle: new orders of files and records in each epoch, which follow from seed, epoch and host:
        128 files are read by turns, and their records shuffled in windows of window_records.
        Otherwise records come in data order.
    epochs: default: without end if shuffled, else one.

    Raises: as open_dataset; OptionError for other files, and for keys that the records do not have;
    EmptySplitError for endless epochs of no record, where there are more hosts than records."""
    records = open_dataset(data, split)
    records.info.check_numbers()
    features = feature_spec(records, keys)
    check_number("window_records", window_records, at_least=1)
    check_number("epochs", epochs, at_least=1)
    if epochs is None and not shuffle:
        epochs = 1
    pieces = shares(records, hosts.count)[hosts.index]
    count = sum(piece.size for piece in pieces)
    if epochs is None and not count:
        raise EmptySplitError(
            f"{records.info.name}: host {hosts.index} of {hosts.count} has none of its "
            f"{records.num_records} records, and cannot repeat them."
        )
    files = _table(pieces)
    host_key = stateless.stateless_fold_in([seed, 0], hosts.index)

    def epoch(number: Any) -> tf.data.Dataset:
        if not shuffle:
            return _epoch(records, files, features, None, 1, IN_ORDER)
        key = stateless.stateless_fold_in(host_key, number)
        return _epoch(records, files, features, key, STREAMS, window_records)

    dataset = tf.data.Dataset.counter().take(-1 if epochs is None else epochs).flat_map(epoch)
    cardinality = tf.data.INFINITE_CARDINALITY if epochs is None else count * epochs
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.apply(tf.data.experimental.assert_cardinality(cardinality)).with_options(options)


def feature_spec(data: Data | Sequence[Data], keys: Iterable[str] | None = None) -> dict[str, Any]:
    """What tf.io.parse_example needs to parse these features of the records; None: all of them.

    Values are as stored: bytes, int64 or float32, ragged where a feature has any length; one that
    may be absent is then 0 or b"". Nothing for records that are not tf.train.Examples.

    Raises: as open_dataset; OptionError for unknown keys."""
    layout = open_dataset(data).layout
    features = layout.features if isinstance(layout, Schema) and not layout.opaque else {}
    chosen = features if keys is None else chosen_specs(layout, keys)
    return {key: parsing_of(features[key]) for key in chosen if key in features}


def parsing_of(feature: Feature) -> Any:
    """The same for one feature."""
    dtype = tf.as_dtype(DTYPES[feature.dtype])
    if None in feature.shape:
        return tf.io.RaggedFeature(dtype)
    if not feature.optional:
        return tf.io.FixedLenFeature(feature.shape, dtype)
    default = tf.fill(feature.shape, tf.constant(b"" if dtype == tf.string else 0, dtype))
    return tf.io.FixedLenFeature(feature.shape, dtype, default)


def host_counts(records: Records, hosts: int) -> list[int]:
    """The number of records of each host, if there are this many hosts."""
    return [sum(piece.size for piece in share) for share in shares(records, hosts)]


def shares(records: Records, hosts: int) -> list[list[Piece]]:
    """The pieces of each host. OptionError for records that TensorFlow cannot read there."""
    pieces = list[Piece]()
    first = 0
    for piece in _pieces(records):
        pieces += [piece._replace(first=first)] if piece.size else []
        first += piece.size
    if len(pieces) < hosts:
        ends = [first * host // hosts for host in range(hosts + 1)]
        return [_cut(pieces, range(*ends[host : host + 2])) for host in range(hosts)]
    shared: list[list[Piece]] = [[] for _ in range(hosts)]
    counts = [0] * hosts
    for piece in sorted(pieces, key=lambda piece: -piece.size):
        host = counts.index(min(counts))
        counts[host] += piece.size
        shared[host].append(piece)
    return [sorted(share, key=lambda piece: piece.first) for share in shared]


def _pieces(records: Any) -> list[Piece]:
    """All pieces in data order, not numbered."""
    if isinstance(records, Dataset):
        return _pieces(records.source)
    if isinstance(records, Concatenated):
        cuts = (_cut(_pieces(part.records), part.which) for part in records.parts)
        return [piece for cut in cuts for piece in cut]
    if not isinstance(records, IndexedRecords):
        raise OptionError(
            f"{records.info.name} is not made of indexed TFRecord files. tf_data.train_dataset and "
            "eval_dataset read it."
        )
    directory, index = records.manifest.directory, records.index
    scheme, colon, _ = directory.partition("://")
    if colon and scheme not in tf.io.gfile.get_registered_schemes():
        raise OptionError(
            f"TensorFlow cannot read {scheme}:// here. tf_data.train_dataset and eval_dataset can: "
            "infeed reads for them."
        )
    rows = index.shard_starts.tolist()
    return [
        Piece(join(directory, shard.file), index, row, shard.records)
        for shard, row in zip(records.entry.shards, rows, strict=False)
    ]


def _cut(pieces: Sequence[Piece], which: range) -> list[Piece]:
    """What they have of these records, counted over all of them."""
    found = list[Piece]()
    end = 0
    for piece in pieces:
        begin, end = end, end + piece.size
        skipped = max(which.start - begin, 0)
        count = min(which.stop, end) - begin - skipped
        if count > 0:
            row, first = piece.row + skipped, piece.first + skipped
            found.append(piece._replace(row=row, first=first, size=count))
    return found


def _table(pieces: Sequence[Piece]) -> tuple[np.ndarray, ...]:
    """What `_read` needs of them: path, the byte at which they begin, size and first."""
    begins = [piece.of_split.locate_one(piece.row)[1] for piece in pieces]
    numbers = [np.array([piece[field] for piece in pieces], np.int64) for field in (3, 4)]
    return np.array([piece.path for piece in pieces], str), np.array(begins, np.int64), *numbers


def _read(buffer_bytes: int, *fields: Any) -> tf.data.Dataset:
    """The payloads of a piece, with their numbers. fields: see _table.

    From a damaged frame on, or the end of a file that is too short, payloads are empty: an error of
    tf.data would not name the file."""
    path, begin, size, first = fields
    # TFRecordDataset has no offset: it would read all that comes before
    opened = tf.raw_ops.TFRecordDatasetV2(
        filenames=[path], compression_type="", buffer_size=buffer_bytes, byte_offsets=[begin]
    )
    payloads: Any = tf.data.experimental.from_variant(opened, tf.TensorSpec([], tf.string))
    payloads = payloads.ignore_errors(True)
    payloads = payloads.concatenate(tf.data.Dataset.from_tensors(b"").repeat())
    return tf.data.Dataset.zip(payloads, tf.data.Dataset.range(first, first + size))


def _checked(records: Records, payloads: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """The checksums in the index. Raises CorruptRecordError where the records have others."""
    assert records.info.crcs is not None
    crcs = records.info.crcs[numbers]
    wrong = numbers[crcs != np.array([*map(crc32c, payloads)], np.uint32)]
    if wrong.size:
        raise CorruptRecordError(
            f"{records.where(int(wrong.min()))} is damaged: TensorFlow cannot read it, or it "
            f"differs from the index. `{records.info.verify_command}` checks all of them."
        )
    return crcs


def _epoch(
    data: Records,
    files: tuple[np.ndarray, ...],
    features: Mapping[str, Any],
    key: Any,
    streams: int,
    window: int,
) -> tf.data.Dataset:
    """The records of an epoch, shuffled if there is a key: not by Dataset.shuffle, whose state no
    checkpoint takes. files: see _table.

    Many are parsed together: one by one, with `map`, it takes four times as long."""

    def shuffled(columns: tuple[Any, ...], key: Any) -> tuple[Any, ...]:
        if key is None:
            return columns
        order = stateless.stateless_shuffle(tf.range(tf.size(columns[0])), key)
        return tuple(tf.gather(column, order) for column in columns)

    def parsed(number: Any, columns: tuple[Any, ...]) -> dict[str, Any]:
        within = None if key is None else stateless.stateless_fold_in(key, number)
        payloads, numbers = shuffled(columns, within)
        check = partial(_checked, data)
        checked = tf.numpy_function(check, [payloads, numbers], tf.uint32, False, OURS)
        with tf.control_dependencies([checked]):
            found = tf.io.parse_example(payloads, features) if features else {"record": payloads}
        index = tf.cast(numbers, tf.int32)
        return found | {"_index": index, "_crc": tf.ensure_shape(checked, [None])}

    cycle = max(1, min(streams, len(files[0])))
    slices = tf.data.Dataset.from_tensor_slices(shuffled(tuple(map(tf.constant, files)), key))
    records = slices.interleave(
        partial(_read, min(BUFFER_BYTES, BUFFERS_BYTES // cycle)),
        cycle_length=cycle,
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return records.batch(window).enumerate().map(parsed).prefetch(1).unbatch()
