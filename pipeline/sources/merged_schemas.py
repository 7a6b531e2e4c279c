"""The schema of records that have none: what all records examined so far have in common.

The tfrecord converter and open_dataset examine a sample, pipeline.commands.index every record. Two
things cannot be inferred: shape (1,) looks like a single value, and two dimensions look like one.
No TensorFlow."""

from collections.abc import Iterable
from dataclasses import replace

from pipeline.errors import OptionError, SchemaError
from pipeline.shards.example_decoding import FeatureShape, example_shapes
from pipeline.shards.schema import PASSED_ON, Content, Feature, Labels, Schema
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage

_IMAGES = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")  # the formats that every reader decodes
_MAX_TEXT_BYTES = 1024
_MOST_SEEN = 1024  # sets of features


class SchemaGuess:
    """`schema` fits every record added so far; None before the first."""

    def __init__(self) -> None:
        self.schema: Schema | None = None
        self._seen = set[tuple[object, ...]]()

    def add(self, payload: bytes) -> None:
        """~3 us per feature: most records have features seen before. Raises SchemaError like
        `merged_schema`."""
        try:
            shapes = example_shapes(payload).items()
            features = {key: _feature(payload, found) for key, found in shapes}
        except SchemaError:  # not an Example
            features = {}
        seen = tuple(sorted(features.items()))
        if seen in self._seen:
            return
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen.add(seen)
        of_record = Schema(PASSED_ON, {key: Feature(*facts) for key, facts in features.items()})
        self.schema = merged_schema(filter(None, [self.schema, of_record]))


def _feature(payload: bytes, found: FeatureShape) -> tuple:
    """(dtype, shape, optional, content) of a feature in one record."""
    shape = () if found.num_values == 1 else (found.num_values or None,)
    return found.dtype, shape, False, _content(payload, found)


def _content(payload: bytes, found: FeatureShape) -> Content:
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


def merged_schema(schemas: Iterable[Schema]) -> Schema:
    """The narrowest schema that fits the records of all schemas; opaque if one of them is. The
    order does not matter.

    Raises SchemaError for a feature with two dtypes, which no schema can express."""
    merged, *others = schemas
    for other in others:
        if merged.opaque or other.opaque:
            return Schema(merged.name, {})
        keys = sorted(merged.features.keys() | other.features.keys())
        features = {
            key: merged_feature(key, merged.features.get(key), other.features.get(key))
            for key in keys
        }
        merged = Schema(merged.name, features)
    return merged


def merged_feature(key: str, one: Feature | None, other: Feature | None) -> Feature:
    """The narrowest feature that fits both; optional if one is None. Raises SchemaError for two
    dtypes."""
    if one is None or other is None:
        only = one or other
        assert only
        return replace(only, optional=True)
    if one.dtype != other.dtype:
        kinds = " and ".join(sorted((one.dtype, other.dtype)))
        raise SchemaError(
            f"{key!r} is {kinds} in different records, which no reader can parse. Give the "
            "intended schema with --schema-file; records that do not match it are then named."
        )
    return Feature(
        one.dtype,
        one.shape if one.shape == other.shape else (None,),
        one.optional or other.optional,
        one.content if one.content == other.content else "raw",
        one.doc or other.doc,
    )


def read_schema(path: str) -> Schema:
    """The schema in a JSON file: a schema as in a manifest, or a complete manifest. Raises
    OptionError."""
    remedy = "Give a manifest.json, or the schema from one."
    file = JsonFile(f"--schema-file={path}", OptionError, remedy)
    data = file.parse(open_storage(path).read(path))
    schema = file.typed(
        data["schema"] if isinstance(data, dict) and "schema" in data else data, Schema
    )
    return replace(schema, name=PASSED_ON)


def read_labels(path: str, key: str, base: int, schema: Schema) -> Labels:
    """The names in a text file, one per line; the first has number `base`. Ignores a byte order
    mark, and blank lines at the end. Raises OptionError."""
    try:
        names = tuple(open_storage(path).read(path).decode("utf-8-sig").rstrip().splitlines())
    except UnicodeDecodeError as e:
        raise OptionError(
            f"--labels-file={path} is not UTF-8: {e}. Save it as UTF-8, one name per line."
        ) from e
    feature = schema.features.get(key)
    if feature is None or feature.dtype != "int64":
        known = [name for name, other in schema.features.items() if other.dtype == "int64"]
        raise OptionError(
            f"--label-key={key} is not an int64 feature. Known: {', '.join(known) or 'none'}."
        )
    if not names:
        raise OptionError(f"--labels-file={path} is empty.")
    return Labels(key, base, names)
