"""What a training keeps of its data's description in <workdir>/data.json: with it, the model can be used without them.

Only features and class names; no record. NumPy only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pipeline.errors import CheckpointError, Reject
from pipeline.raw.cells import document_cell, integer_cell, number_or_nan
from pipeline.shards.example import Value
from pipeline.shards.schema import Feature, Labels, Schema
from pipeline.shards.typed_json import JsonFile, sealed, unsealed
from pipeline.sources.in_memory import ExampleRecords
from pipeline.sources.records import Records
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.workdir import DATA

MOST_VALUES = 2**24  # of a feature of one record: the file may state any number
BLANK: Mapping[str, Value] = {"bytes": b"", "int64": 0, "float32": 0.0}


@dataclass(frozen=True)
class KeptData:
    """The features of the records of a training, and their class names, if there are any."""

    schema: Schema
    labels: Labels | None = None

    @staticmethod
    def of(records: Records) -> "KeptData | None":
        """Of the records of a dataset; None for arrays and for records whose features are unknown."""
        layout = records.info.layout
        if not isinstance(layout, Schema) or layout.opaque:
            return None
        return KeptData(layout, records.info.labels)

    def to_json(self) -> bytes:
        """The content of the file."""
        page = {"schema": self.schema.to_json(), "labels": self.labels and asdict(self.labels)}
        return json.dumps(sealed(page), indent=1).encode() + b"\n"

    def records(
        self, name: str, examples: Iterable[Mapping[str, Value]] = ({},), places: Sequence[str] = ()
    ) -> ExampleRecords:
        """Examples in memory as such records: features that one lacks are blank. Default: one blank record.

        places: what messages call each of them."""
        blank = {key: _blank(feature) for key, feature in self.schema.features.items()}
        filled = ({**blank, **example} for example in examples)
        return ExampleRecords(name, self.schema, filled, self.labels, places=places)


def row_values(features: Mapping[str, Feature], cells: Mapping[str, Any]) -> dict[str, Value]:
    """The cells of a table's row whose columns have the names of features, as their values; NaN for a missing number.

    Raises Reject."""
    integer = partial(number_or_nan, read=integer_cell)
    kinds: Mapping[str, Any] = {"bytes": document_cell, "int64": integer, "float32": number_or_nan}
    found = dict[str, Any]()
    try:
        for name, cell in ((name, cell) for name, cell in cells.items() if name in features):
            kind = partial(kinds[features[name].dtype], name)
            found[name] = [*map(kind, cell)] if isinstance(cell, list) else kind(cell)
    except ValueError as error:
        raise Reject(str(error)) from error
    if not found:
        raise Reject(f"none of the columns {', '.join(cells)} is a feature ({', '.join(features)})")
    return found


def _blank(feature: Feature) -> Any:
    return [] if feature.num_values is None else [BLANK[feature.dtype]] * feature.num_values


def kept_data(workdir: str) -> KeptData | None:
    """Of the training in this work directory; None where an earlier version trained. CheckpointError if damaged."""
    storage, path = open_storage(workdir), join(workdir, DATA)
    if not storage.exists(path):
        return None
    file = JsonFile(path, CheckpointError, "Copy it again, or remove it and give the data.")
    kept = file.typed(unsealed(file, storage.read(path))[0], KeptData)
    for name, feature in kept.schema.features.items():
        if (feature.num_values or 0) > MOST_VALUES:
            raise file.misfit(f"a record has {feature.num_values:,} values of {name!r}; allowed are {MOST_VALUES:,}.")
    return kept
