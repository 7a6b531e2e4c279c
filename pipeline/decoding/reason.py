"""What TensorFlow says of a record that it cannot decode, without what it says of its graph."""

import re

__all__ = ["reason"]

_STACK_LINE = re.compile(r'Graph execution error|Detected at node|  File "|\s*$')
_GRAPH_NAMES = re.compile(r"\{\{(function_)?node [^}]*\}\}|\[\[.*?\]\]|\[Op:.*?\]|INVALID_ARGUMENT:")
_ASSERTION = re.compile(r"assertion failed: \[(.*?)\]")


def reason(message: str) -> str:
    """TensorFlow's message without the graph's nodes and the stack that built it."""
    if "root error(s) found" in message:  # the others are what the first one cancelled
        message = message.partition("(0) ")[2].partition("\n  (1) ")[0]
    lines = [line for line in message.splitlines() if not _STACK_LINE.match(line)]
    text = _ASSERTION.sub(r"\1", _GRAPH_NAMES.sub("", " ".join(lines)))
    return " ".join(text.replace("\\'", "'").split())
