"""What an exported model needs of an input: its decoding for any number of rows, without the batches of one host."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.decoding.op import Features
from pipeline.decoding.parse import parse_records
from pipeline.decoding.rows import RowDecoder
from pipeline.shards.schema import Schema
from pipeline.sources.records import Records, fetch, intact
from pipeline.spec import ArraySpec, feature_specs
from pipeline.tf_cpu import tf


class Serving:
    """Decodes records, or their features as they are stored, like the input it comes from: in a graph of TensorFlow.

    Ops get zeros in place of the seeds that an evaluation derives from a record's number, so one that draws random
    numbers in evaluation computes something else. stored: the features of a record that are needed, key -> ArraySpec;
    None if one of them has no fixed shape. kind: "examples" if a record is a tf.train.Example, else "records"."""

    def __init__(self, records: Records, decoder: RowDecoder) -> None:
        self._records, self._decoder = records, decoder
        layout = records.info.layout
        specs = {key: feature_specs(layout)[key] for key in decoder.stored}
        fixed = all(None not in spec.shape for spec in specs.values())
        self.stored: Mapping[str, ArraySpec] | None = specs if specs and fixed else None
        self.kind = "examples" if isinstance(layout, Schema) and not layout.opaque else "records"

    def decode(self, payloads: Any) -> Features:
        """The features [n, ...] of records, string [n]."""
        return self._decoder.decode(payloads, self._seeds(tf.shape(payloads)[0]))

    def decode_stored(self, features: Features) -> Features:
        """The same, from the features `stored`, each [n, ...]."""
        count = tf.shape(next(iter(features.values())))[0]
        return self._decoder.from_stored(features, self._seeds(count))

    def payloads(self, record_ids: Sequence[int]) -> list[bytes]:
        """The bytes of these records. Raises CorruptRecordError for a damaged one, and StorageError."""
        return [intact(record).payload for record in fetch(self._records, np.asarray(record_ids, np.int64))]

    def stored_features(self, payloads: Sequence[bytes]) -> dict[str, np.ndarray]:
        """The features `stored` of these records; none if that is None."""
        keys = self.stored or {}
        parsed = parse_records(self._records.info.layout, list(keys), tf.constant(payloads, tf.string, [len(payloads)]))
        return {key: value.numpy() for key, value in parsed.items()}

    def _seeds(self, count: Any) -> Any:
        return tf.zeros([count, self._decoder.num_ops, 2], tf.int32)
