"""Turns the errors of Orbax and its libraries into one line."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import CheckpointError, InfeedError
from pipeline.storage.storage import advice_for

__all__ = ["as_checkpoint_error", "reason"]


def reason(error: BaseException, advice: str = "") -> str:
    """The first line of the original error, without the settings that tensorstore appends.

    Ends with the HTTP status if there is one, which is not a sign of damage, else with `advice`; by default that for
    the operating system's error."""
    while error.__cause__:  # Orbax's own text is a page of tensorstore's settings
        error = error.__cause__
    text = str(error).strip() or type(error).__name__
    line = re.split(r" \[\w+(?:\[\d+\])?='", text.split("\n", 1)[0], maxsplit=1)[0][:500]
    status = re.search(r"\[http_response_code='(\d+)'\]", text)
    if status:
        return f"status {status[1]}: {line}"
    advice = advice or f" {advice_for(line)}".rstrip()
    return f"{line.removesuffix('.')}.{advice}" if advice else line


@contextmanager
def as_checkpoint_error(action: str, path: str, save_seconds: float, advice: str = "") -> Iterator[None]:
    """Raises CheckpointError("cannot <action> <path>: <reason>") for errors of the block that are not ours."""
    import jax  # tools that only read checkpoints do without it

    try:
        yield
    except (InfeedError, jax.errors.JaxRuntimeError):  # of a collective: the watchdog names the host to blame
        raise
    except TimeoutError as error:  # Orbax raises it for its AsyncOptions
        late = f"it has not finished after {save_seconds:g} s (save_seconds)."
        raise CheckpointError(f"cannot {action} {path}: {late}") from error
    except Exception as error:  # OSError, ValueError, errors of tensorstore
        raise CheckpointError(f"cannot {action} {path}: {reason(error, advice)}") from error
