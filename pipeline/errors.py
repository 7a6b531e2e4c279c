"""The exception tree. Every error that a user can cause or see is an InfeedError.

A message states the problem, the value found, the allowed values and the remedy. Command lines
print it without a traceback and exit with 2. Names in raw data may contain anything, so str() of an
error escapes control characters. A notebook shows an error below the user's own frames only. Like
JAX's own filter, this is off if the environment has JAX_TRACEBACK_FILTERING=off.

The remedy for a missing package is a command that works from a checkout and from a wheel, published
or not: pip finds 'infeed[read]' only in a package index, so for a wheel the command lists the
packages of the extra. Stdlib only."""

import contextlib
import functools
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from types import TracebackType

__all__ = [
    "BadRecordsError",
    "BatchSizeError",
    "CheckpointError",
    "ConversionError",
    "CorruptRecordError",
    "DisagreementError",
    "EmptySplitError",
    "EvaluationError",
    "ExportError",
    "FingerprintError",
    "HostError",
    "InfeedError",
    "InputError",
    "LabelError",
    "LostDataError",
    "ManifestError",
    "NanError",
    "OptionError",
    "OwnerError",
    "RawDataError",
    "RecordNumberError",
    "SchemaError",
    "ShardError",
    "StallError",
    "StorageError",
    "printable",
]

_ROOT = Path(__file__).resolve().parents[1]
_OURS = tuple(
    f"{_ROOT / name}{os.sep}" for name in ("pipeline", "trainer", "converters", "beam_jobs")
)
_LIBRARIES = (
    f"{os.sep}site-packages{os.sep}",
    f"{os.sep}dist-packages{os.sep}",
    "__autograph_generated_file",
)
_STDLIB = f"{Path(os.__file__).resolve().parent}{os.sep}"
# C0, DEL, C1; direction marks and overrides; line separators; and lone surrogates, which UTF-8
# cannot encode.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_OF_EXTRA = re.compile(r"""(?P<requirement>.*?)\s*;\s*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")
_OURSELVES = re.compile(r"infeed\[(?P<extras>[\w,-]+)\]")


class ShortInNotebooks(BaseException):
    """An error whose message says everything: a notebook shows it below the user's own frames,
    without its causes."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows, if an exception has this method."""
        from IPython import get_ipython  # pyright: ignore[reportMissingImports, reportPrivateImportUsage]

        trace = self.__traceback__
        cause = self.__cause__
        silent = self.__suppress_context__
        if not keeps_all_frames():
            trace = only(user_frames(trace)) or trace
            self.__cause__ = None
        try:
            return get_ipython().InteractiveTB.structured_traceback(
                type(self), self, trace, tb_offset=0
            )
        finally:
            self.__cause__ = cause
            self.__suppress_context__ = silent


def keeps_all_frames() -> bool:
    """Whether the user asked for complete tracebacks."""
    return os.environ.get("JAX_TRACEBACK_FILTERING") == "off"


def user_frames(trace: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback that are neither ours nor a library's, outermost first."""
    return [entry for entry in _entries(trace) if _is_users(entry.tb_frame.f_code.co_filename)]


def only(entries: Iterable[TracebackType]) -> TracebackType | None:
    """A traceback of these entries."""
    shown: TracebackType | None = None
    for entry in reversed(list(entries)):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _is_users(file: str) -> bool:
    if file.startswith("<"):  # such as <string>, in which dataclasses are written
        return file.startswith(("<stdin>", "<ipython-input"))
    path = os.path.realpath(file)
    return not path.startswith((*_OURS, _STDLIB)) and not any(part in path for part in _LIBRARIES)


class InfeedError(ShortInNotebooks, Exception):
    """The root of the tree: `except InfeedError` catches everything that infeed itself raises.

    Each argument is one line of the message. A newline inside an argument is part of a name and is
    escaped."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class OptionError(InfeedError, ValueError):
    """An option or argument has a value that is not allowed."""


class BatchSizeError(OptionError):
    """A batch size does not fit the hosts, devices or streams."""


class SchemaError(InfeedError, ValueError):
    """A record does not fit its schema, or a schema is malformed."""


class StorageError(InfeedError, OSError):
    """A path cannot be read or written, or a file is shorter than expected."""


class StallError(InfeedError, TimeoutError):
    """A wait for data exceeded its limit. The log has the stacks of all threads."""


class RecordNumberError(InfeedError, IndexError):
    """A dataset has no record of this number."""


class ManifestError(InfeedError):
    """The manifest is missing, unreadable or of an unknown version."""


class EmptySplitError(InfeedError):
    """A split has no records to train on or evaluate."""


class ShardError(InfeedError):
    """A shard or index does not match the manifest."""


class CorruptRecordError(ShardError):
    """A record's bytes do not match their checksum."""


class BadRecordsError(ShardError):
    """More records are bad than may be left out, or no good record is left to replace one."""


class FingerprintError(InfeedError):
    """A saved input position belongs to another dataset or order."""


class Reject(Exception):  # noqa: N818 - an outcome of a record, not an error of the program
    """A raw record cannot be converted, for this reason. The ledger of a conversion lists it; the
    job continues."""


class RawDataError(InfeedError):
    """The raw data is missing, or its layout is unknown to the converter."""


class LabelError(RawDataError):
    """A class or a validation image has no label in the label files."""


class ConversionError(InfeedError):
    """A conversion ended without a complete split. The message lists what is missing or
    rejected."""


class LostDataError(ConversionError):
    """A runner silently lost or repeated data."""


class InputError(InfeedError):
    """A batch has the wrong structure, shape or dtype, or a label outside of the classes, or the
    input ended early."""


class NanError(InfeedError, ArithmeticError):
    """The loss became NaN or infinite."""


class CheckpointError(InfeedError):
    """A checkpoint is missing, damaged or of another model."""


class HostError(InfeedError):
    """Another host failed or stopped responding."""


class DisagreementError(InfeedError):
    """The hosts of a run disagree on what to do next. All of them raise it, so they may make
    another call."""


class OwnerError(InfeedError):
    """Another training run owns, or has taken over, the work directory."""


class EvaluationError(InfeedError):
    """An evaluation did not count every record exactly once, or met labels outside of the classes,
    so its numbers are not those of the split."""


class ExportError(InfeedError):
    """A model cannot be exported, or its export does not compute what the model predicts."""


def printable(text: str) -> str:
    r"""The text with escapes (\x1b, \n, \u202e ...) for terminal controls and for what UTF-8 cannot
    encode."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def how_to_install(*names: str) -> str:
    """The command for these extras, quoted for a shell: pip install -e '.[tf]' in a checkout.

    Elsewhere it lists what they require, as no package index has infeed; where nothing tells that,
    it names the extras: an error must not fail on its remedy."""
    if _is_checkout():
        # Path.cwd() fails where it was removed
        here = "." if os.environ.get("PWD") == str(_ROOT) else _ROOT
        return f"pip install -e '{here}[{','.join(names)}]'"
    extras = _extras()
    packages = (
        packages_of(names, extras)
        if extras.keys() >= set(names)
        else [f"infeed[{','.join(names)}]"]
    )
    return f"pip install {' '.join(map(shlex.quote, packages))}"


def _is_checkout() -> bool:
    with contextlib.suppress(OSError, KeyError, ValueError):  # missing, or that of another project
        return tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["name"] == "infeed"
    return False


def packages_of(names: Sequence[str], extras: Mapping[str, Sequence[str]]) -> list[str]:
    """The requirements of these extras and of the extras that they include, each once."""
    packages = dict[str, None]()
    for requirement in (requirement for name in names for requirement in extras[name]):
        ours = _OURSELVES.fullmatch(requirement)
        packages |= dict.fromkeys(
            packages_of(ours["extras"].split(","), extras) if ours else [requirement]
        )
    return list(packages)


@functools.cache
def _extras() -> Mapping[str, Sequence[str]]:
    """What each extra requires, by the metadata of an installed wheel."""
    requirements = dict[str, list[str]]()
    # our packages were copied without their metadata
    with contextlib.suppress(PackageNotFoundError):
        for match in filter(None, map(_OF_EXTRA.fullmatch, requires("infeed") or ())):
            requirements.setdefault(match["extra"], []).append(match["requirement"])
    return requirements
