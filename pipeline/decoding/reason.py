"""What TensorFlow says of a record that it cannot decode, without what it says of its graph."""

import re
from typing import Any

__all__ = ["reason"]

_STACK_LINE = re.compile(r'Graph execution error|Detected at node|  File "|\s*$')
_GRAPH_NAMES = re.compile(
    r"\{\{(function_)?node [^}]*\}\}|\[\[.*?\]\]|\[Op:.*?\]|INVALID_ARGUMENT:|<stack traces unavailable>"
)
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]")
# Of the ops that decode images; they name neither what is wrong nor what to do.
_DAMAGED = re.compile(r"(Invalid|Failed to decode) (?P<kind>JPEG|PNG|WebP)\b")


def reason(error: Any) -> str:
    """The message of TensorFlow's error without the graph's nodes and the stack that built it.

    error: InvalidArgumentError, or the UnicodeDecodeError that comes in its place when the message quotes bytes of a
    record that are not UTF-8."""
    message = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else error.message
    if "root error(s) found" in message:  # the others are what the first one cancelled
        message = message.partition("(0) ")[2].partition("\n  (1) ")[0]
    lines = [line for line in message.splitlines() if not _STACK_LINE.match(line)]
    text = _ASSERTION.sub(r"\1", _GRAPH_NAMES.sub("", " ".join(lines)))
    return _explained(" ".join(text.replace("\\'", "'").split()))


def _explained(text: str) -> str:
    if found := _DAMAGED.search(text):
        return (
            f"the {found['kind']} image is damaged or truncated. Replace it and convert the data again, or leave such "
            f"records out with on_error. TensorFlow says: {text}"
        )
    return text
