"""TensorFlow's message about a record that it cannot decode, without the part about its graph."""

import re
from typing import Any

__all__ = ["reason"]

_STACK_LINE = re.compile(r'Graph execution error|Detected at node|  File "|\s*$')
_GRAPH_NAMES = re.compile(
    r"\{\{(function_)?node [^}]*\}\}|\[\[.*?\]\]|\[Op:.*?\]|INVALID_ARGUMENT:|<stack traces unavailable>"
)
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]")
# Messages of the ops that decode images; they state neither the problem nor the remedy.
_DAMAGED = re.compile(r"(Invalid|Failed to decode) (?P<kind>JPEG|PNG|WebP)\b")

OTHER_FORMATS = " DecodeJpeg decodes nothing but JPEG; DecodeResize also decodes PNG and WebP."


def reason(error: Any) -> str:
    """The message of TensorFlow's error, without the names of graph nodes and the stack that built them.

    error: InvalidArgumentError, or the UnicodeDecodeError that replaces it when the message quotes bytes of a record
    that are not UTF-8."""
    message = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else error.message
    if "root error(s) found" in message:  # the first cancelled the others
        message = message.partition("(0) ")[2].partition("\n  (1) ")[0]
    lines = [line for line in message.splitlines() if not _STACK_LINE.match(line)]
    text = _ASSERTION.sub(r"\1", _GRAPH_NAMES.sub("", " ".join(lines)))
    text = " ".join(text.replace("\\'", "'").split())
    if found := _DAMAGED.search(text):
        return (
            f"the {found['kind']} image is damaged or truncated. Replace it and convert the data again, or leave such "
            f"records out with on_error.{OTHER_FORMATS if found['kind'] == 'JPEG' else ''} TensorFlow reports: {text}"
        )
    return text
