"""What the libraries under Orbax mean by their errors, in one line."""

import re

from pipeline.shards.os_errors import advice_for

__all__ = ["reason"]


def reason(error: BaseException, advice: str = "") -> str:
    """The first line of what began it, without the settings that tensorstore appends.

    With the HTTP status if there is one, else with the advice: a status is no sign of damage. Default: the advice for
    what the operating system said."""
    while error.__cause__:  # Orbax's own text is a page of tensorstore's settings
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    line = re.split(r" \[\w+(?:\[\d+\])?='", text.split("\n", 1)[0], maxsplit=1)[0][:500]
    status = re.search(r"\[http_response_code='(\d+)'\]", text)
    if status:
        return f"status {status[1]}: {line}"
    advice = advice or f" {advice_for(line)}".rstrip()
    return f"{line.removesuffix('.')}.{advice}" if advice else line
