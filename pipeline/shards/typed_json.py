"""Reads infeed's JSON files as dataclasses. An error is one line: the file, the path of the key,
the remedy.

Some of them, such as manifests, claims and receipts, are sealed: they contain their own checksum,
so that a changed bit is never read as a value. json parses the text, because msgspec's parser
rejects lone surrogates, which represent non-UTF-8 bytes of names."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from pipeline.checks import did_you_mean
from pipeline.errors import InfeedError
from pipeline.shards.frames import crc32c

T = TypeVar("T")

Json = dict[str, Any]
"""A JSON object."""
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\x00]+\Z")]
"""A file of the same directory: a file that came with data may name no other."""
NonEmpty = Annotated[tuple[T, ...], msgspec.Meta(min_length=1)]
# metadata of a field whose default is for Python only
REQUIRED = MappingProxyType({"required in JSON": True})
_Path = tuple[str | int, ...]
_SHOWN = 60  # characters of a rejected value


@dataclass(frozen=True)
class JsonFile:
    """A JSON file: its path, the class of its errors, and the remedy for them, in complete
    sentences.

    Types are strict: 1.0 and true are not ints, and unknown keys are errors. A `kind` consists of
    dataclasses, Mapping[str, ...], tuple[..., ...], `| None`, Literal and JSON's own types."""

    path: str
    error: type[InfeedError]
    remedy: str

    def read(self, text: bytes | str, kind: type[T]) -> T:
        """The text as a `kind`. Raises `error`."""
        return self.typed(self.parse(text), kind)

    def parse(self, text: bytes | str) -> Any:
        """The text as plain JSON types. Raises `error`."""
        try:
            return json.loads(text, object_pairs_hook=once)
        except _TwiceError as e:
            raise self.misfit(f"{e}.") from e
        except (ValueError, RecursionError) as e:
            raise self.misfit(f"{e}.", " is not JSON:") from e

    def typed(self, value: object, kind: type[T]) -> T:
        """A parsed value as a `kind`. Raises `error`. Takes about 5 us per object in it."""
        try:
            read = msgspec.convert(value, kind)
        # ValueError: a lone surrogate in a key or Literal
        except (msgspec.ValidationError, ValueError) as e:
            raise self.misfit(_problem(value, kind, ())) from e
        if problem := _problem(value, kind, (), fits=True):
            raise self.misfit(problem)
        return read

    def misfit(self, problem: str, what: str = ":") -> InfeedError:
        """The error for a problem, which is a sentence."""
        return self.error(f"{self.path}{what} {problem} {self.remedy}".rstrip())


class _TwiceError(ValueError):
    """A key is repeated in an object."""


def once(pairs: Sequence[tuple[str, Any]]) -> Json:
    """An object_pairs_hook for json.loads that rejects repeated keys. Raises ValueError."""
    fields_by_name = dict(pairs)
    if len(fields_by_name) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise _TwiceError(f"an object has the key {json.dumps(twice)} twice")
    return fields_by_name


def _problem(value: object, kind: Any, at: _Path, fits: bool = False) -> str:
    """The first problem in `value`, as a sentence; "" if there is none. at: the path of its key.

    fits: msgspec has accepted the value, so only keys need checking."""
    inner = _bare(kind)
    if problem := _problem_of_keys(value, inner, at):
        return problem
    if (
        fits
        and isinstance(value, list)
        and (keys := _flat_keys(*get_args(inner)[:1]))
        and all(part.keys() == keys for part in value)
    ):
        return ""
    for step, part, part_kind in _parts(value, inner):
        if (not fits or isinstance(part, dict | list)) and (
            problem := _problem(part, part_kind, (*at, step), fits)
        ):
            return problem
    if fits:
        return ""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, ValueError) as e:
        why = _in_words(str(e))
        if get_origin(inner) is Literal and isinstance(value, str):
            why = f"expected one of {', '.join(get_args(inner))}"
        shown = "" if isinstance(value, dict | list) else f" is {json.dumps(value)[:_SHOWN]}"
        return f"{_in_text(at)}{shown}: {why}."
    return ""


def _problem_of_keys(value: object, kind: Any, at: _Path) -> str:
    """The first problem with the keys at this level: msgspec accepts unknown keys of a
    dataclass."""
    if not isinstance(value, dict) or not is_dataclass(kind):
        return ""
    known = _required_by_key(kind)
    if value.keys() == known.keys():
        return ""
    for key in value:
        if key not in known:
            return f"the key {_in_text((*at, key))} is unknown.{did_you_mean(key, known)}"
    missing = [key for key, required in known.items() if required and key not in value]
    return f"the key {_in_text((*at, missing[0]))} is missing." if missing else ""


def _parts(value: object, kind: Any) -> Iterator[tuple[str | int, object, Any]]:
    """The parts of a value: key or number, part, expected kind."""
    of = get_origin(kind)
    if isinstance(value, dict) and (is_dataclass(kind) or of in (dict, Mapping)):
        kinds = _kinds(kind) if is_dataclass(kind) else dict.fromkeys(value, get_args(kind)[1])
        yield from ((key, part, kinds[key]) for key, part in value.items())
    elif isinstance(value, list) and of in (list, tuple):
        yield from ((number, part, get_args(kind)[0]) for number, part in enumerate(value))


@cache
def _flat_keys(kind: Any = None) -> Collection[str]:
    """The keys of a dataclass whose fields have no parts of their own, such as one of 100,000
    shards, whose fields would take half a second; empty for anything else."""
    kinds = _kinds(kind) if is_dataclass(kind) else {}
    return kinds.keys() if {*map(_bare, kinds.values())} <= {int, float, str} else ()


@cache
def _kinds(kind: Any) -> Mapping[str, Any]:
    return get_type_hints(kind, include_extras=True)


@cache
def _required_by_key(kind: Any) -> Mapping[str, bool]:
    return {
        f.name: f.metadata == REQUIRED or f.default is f.default_factory is MISSING
        for f in fields(kind)
    }


def _bare(kind: Any) -> Any:
    """The type without `| None` and bounds."""
    if get_origin(kind) in (Union, UnionType):
        return _bare(next(one for one in get_args(kind) if one is not NoneType))
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _in_text(path: _Path) -> str:
    steps = (
        f".{step}" if isinstance(step, str) and step.isidentifier() else f"[{json.dumps(step)}]"
        for step in path
    )
    return "".join(steps).removeprefix(".") or "it"


def _in_words(message: str) -> str:
    """msgspec's message without its path, which lacks the keys of mappings."""
    problem = message.partition(" - at ")[0].replace("`", "").rstrip(".")
    if "matching regex" in problem:
        return "expected the name of a file that is written here"
    return problem.replace("Expected", "expected", 1)


CHECKSUM = "checksum"  # the field


def _checksum(fields: Mapping[str, Any]) -> str:
    """8 hex digits: the crc32c of all other fields, whatever the layout of the file."""
    covered = {name: value for name, value in fields.items() if name != CHECKSUM}
    return f"{crc32c(json.dumps(covered, sort_keys=True, separators=(',', ':')).encode()):08x}"


def sealed(fields: Mapping[str, Any]) -> Json:
    """The fields with their checksum."""
    return {**fields, CHECKSUM: _checksum(fields)}


def sealed_line(fields: Mapping[str, Any]) -> bytes:
    """One line of JSON, with its checksum."""
    return (
        json.dumps(sealed(fields)).encode() + b"\n"
    )  # a receipt may be large: two copies, not three


def unsealed(file: JsonFile, data: bytes, hint: str = "") -> tuple[Json, bool]:
    """The fields of a JSON object without their checksum, and whether there was one. Raises
    file.error.

    hint: added to the error for a wrong checksum."""
    fields = file.read(data, Json)
    if CHECKSUM not in fields:
        return fields, False
    expected = _checksum(fields)
    checksum = fields.pop(CHECKSUM)
    if checksum != expected:
        raise file.misfit(
            f"its checksum is {checksum!r}, but that of its fields is {expected!r}{hint}."
        )
    return fields, True


def read_sealed(file: JsonFile, data: bytes, kind: type[T]) -> T:
    """Reads like JsonFile.read. Raises file.error also if the checksum is wrong or missing."""
    fields, has_checksum = unsealed(file, data)
    if not has_checksum:
        raise file.misfit("it has no checksum.")
    return file.typed(fields, kind)
