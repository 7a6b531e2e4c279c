"""The schema of records that came without one: what they all have in common, as far as one has looked.

The tfrecord converter shows it a sample, pipeline.index every record. What it cannot know: (1,) is seen as one value,
and two dimensions as one. No TensorFlow."""

from collections.abc import Iterable

from pipeline.shards.errors import OptionError, SchemaError
from pipeline.shards.example_decoding import FeatureLayout, Layout, example_layout
from pipeline.shards.schema import PASSED_ON, Content, Feature, Labels, Schema
from pipeline.shards.schemes import open_storage
from pipeline.shards.typed_json import JsonFile

__all__ = ["SchemaGuess", "joined", "read_labels", "read_schema"]

_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # what every reader decodes
_MAX_TEXT_BYTES = 1024
_KEPT = 1024


class SchemaGuess:
    """`schema` fits every record that was added; None before the first."""

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._seen: set[tuple[object, ...]] = set()

    def add(self, payload: bytes) -> None:
        """~3 us a feature: most have the layout of an earlier one. Raises SchemaError as `joined`."""
        try:
            features = _features(payload, example_layout(payload))
        except SchemaError:  # no Example
            features = {}
        layout = tuple(sorted(features.items()))
        if layout in self._seen:
            return
        if len(self._seen) >= _KEPT:
            self._seen.clear()
        self._seen.add(layout)
        of_record = Schema(PASSED_ON, {key: Feature(*found) for key, found in features.items()})
        self.schema = joined([of_record] if self.schema is None else [self.schema, of_record])


def _features(payload: bytes, layout: Layout) -> dict[str, tuple]:
    """(dtype, shape, optional, content) of each feature, as one record has it."""
    return {
        key: (found.dtype, _shape(found.num_values), False, _content(payload, found)) for key, found in layout.items()
    }


def _shape(count: int) -> tuple[int | None, ...]:
    return () if count == 1 else (count or None,)


def _content(payload: bytes, found: FeatureLayout) -> Content:
    if found.dtype != "bytes" or found.num_values != 1:
        return "raw"
    begin, end = found.first
    if payload.startswith(_IMAGES, begin, end):
        return "image"
    if end - begin <= _MAX_TEXT_BYTES:
        try:
            if payload[begin:end].decode().replace("\n", " ").replace("\t", " ").isprintable():
                return "text"
        except UnicodeDecodeError:
            pass
    return "raw"


def joined(schemas: Iterable[Schema]) -> Schema:
    """The narrowest schema that fits the records of all; opaque if one of them is. In any order the same.

    Raises SchemaError for a feature of two kinds, which no schema can state."""
    whole, *others = schemas
    for other in others:
        if whole.opaque or other.opaque:
            return Schema(whole.name, {})
        keys = sorted(whole.features.keys() | other.features.keys())
        features = {key: _joined_feature(key, whole.features.get(key), other.features.get(key)) for key in keys}
        whole = Schema(whole.name, features)
    return whole


def _joined_feature(key: str, one: Feature | None, other: Feature | None) -> Feature:
    if one is None or other is None:
        there = one or other
        assert there
        return Feature(there.dtype, there.shape, True, there.content, there.doc)
    if one.dtype != other.dtype:
        kinds = " and ".join(sorted((one.dtype, other.dtype)))
        raise SchemaError(
            f"{key!r} is {kinds} in different records, which no reader parses. Give the schema that is meant with "
            "--schema_file; records that do not fit are then named."
        )
    return Feature(
        one.dtype,
        one.shape if one.shape == other.shape else (None,),
        one.optional or other.optional,
        one.content if one.content == other.content else "raw",
        one.doc or other.doc,
    )


def read_schema(path: str) -> Schema:
    """The schema in a JSON file: a schema as a manifest holds it, or a whole manifest. Raises OptionError."""
    remedy = "Give a manifest.json, or the schema out of one."
    file = JsonFile(f"--schema_file={path} holds no schema", OptionError, remedy)
    data = file.parse(open_storage(path).read(path))
    schema = file.typed(data["schema"] if isinstance(data, dict) and "schema" in data else data, Schema)
    return Schema(PASSED_ON, schema.features, schema.files, schema.version, schema.tfds)


def read_labels(path: str, key: str, base: int, schema: Schema) -> Labels:
    """The names in a text file, one a line; the first is of number `base`. Raises OptionError."""
    try:
        names = tuple(open_storage(path).read(path).decode().splitlines())
    except UnicodeDecodeError as e:
        raise OptionError(f"--labels_file={path} is no UTF-8: {e}. Save it as UTF-8, one name a line.") from e
    feature = schema.features.get(key)
    if feature is None or feature.dtype != "int64":
        there = [name for name, other in schema.features.items() if other.dtype == "int64"]
        raise OptionError(f"--label_key={key} is not an int64 feature. There are: {', '.join(there) or 'none'}.")
    if not names:
        raise OptionError(f"--labels_file={path} is empty.")
    return Labels(key, base, names)
