"""The one exception tree. Every error a user can cause or meet is an InfeedError.

A message says what, got, allowed and what to do. Command lines print it without a traceback and exit 2. Names in raw
data may be anything, so no message has a control character: neither str() of an error nor `printable`."""

import difflib
import re
from collections.abc import Iterable

__all__ = [
    "BadRecordsError",
    "BatchSizeError",
    "CheckpointError",
    "ConversionError",
    "CorruptRecordError",
    "EmptySplitError",
    "EvaluationError",
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
    "SchemaError",
    "ShardError",
    "StallError",
    "StorageError",
    "did_you_mean",
    "printable",
]


# C0, DEL, C1; marks and overrides of direction; separators of lines; and what UTF-8 cannot hold.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class InfeedError(Exception):
    """The root: catch it to catch whatever infeed itself raises.

    Each argument is a line of the message. A newline inside one is part of a name, and is escaped like all others."""

    def __str__(self) -> str:
        return "\n".join(printable(str(line)) for line in self.args)


class OptionError(InfeedError, ValueError):
    """An option or argument has a value that is not allowed."""


class BatchSizeError(OptionError):
    """A batch size does not fit the hosts, devices or streams."""


class SchemaError(InfeedError, ValueError):
    """A record does not fit its schema, or a schema is malformed."""


class StorageError(InfeedError, OSError):
    """A path cannot be read or written, or is shorter than it should be."""


class StallError(InfeedError, TimeoutError):
    """A wait for data lasted longer than it may. The log has what every thread was doing."""


class ManifestError(InfeedError):
    """No manifest, an unreadable one, or one of an unknown version."""


class EmptySplitError(InfeedError):
    """A split has no records, so there is nothing to train on or to evaluate."""


class ShardError(InfeedError):
    """A shard or index is not the one that the manifest describes."""


class CorruptRecordError(ShardError):
    """A record's bytes do not have the checksum that they were written with."""


class BadRecordsError(ShardError):
    """More records are bad than may be left out, or none is left to stand in for one."""


class FingerprintError(InfeedError):
    """A saved input position belongs to another dataset or another order."""


class RawDataError(InfeedError):
    """The raw data to convert is missing, or not in a layout that the converter knows."""


class LabelError(RawDataError):
    """A class or a validation image has no label in the label files."""


class ConversionError(InfeedError):
    """A conversion ended without a complete split. The message lists what is missing or rejected."""


class LostDataError(ConversionError):
    """A runner lost or repeated what it had to carry, and said nothing."""


class InputError(InfeedError):
    """A batch does not have the structure, shape or dtype it should, or the input ended early."""


class NanError(InfeedError, ArithmeticError):
    """The loss became NaN or infinite."""


class CheckpointError(InfeedError):
    """A checkpoint is missing, damaged, or of another model."""


class HostError(InfeedError):
    """Another host failed or fell silent, or the hosts do not agree on what they are about to do."""


class OwnerError(InfeedError):
    """A work directory belongs to another training, or does so by now."""


class EvaluationError(InfeedError):
    """An evaluation did not count every record exactly once, so its numbers are not the split's."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an unknown-name message: the nearest known name first, then all of them."""
    known = sorted(known)
    nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"{hint} Known: {', '.join(known) or 'none'}."


def printable(text: str) -> str:
    r"""The text with \x1b, \n, \u202e and so on for what orders a terminal about or what UTF-8 cannot hold."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
