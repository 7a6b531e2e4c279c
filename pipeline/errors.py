"""The exception tree. Every error that a user can cause or see is an InfeedError.

A message states the problem, the value found, the allowed values and the remedy. Command lines
print it without a traceback and exit with 2. Names in raw data may contain anything, so str() of an
error escapes control characters. Stdlib only."""

import re

from pipeline.user_code import SaysEverything

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

# C0, DEL, C1; direction marks and overrides; line separators; and lone surrogates, which UTF-8
# cannot encode.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


class InfeedError(SaysEverything, Exception):
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
