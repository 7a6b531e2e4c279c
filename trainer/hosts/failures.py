"""What the hosts of a run tell each other of their failures, by the store: each reports only its
own."""

import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

from pipeline.errors import DisagreementError, HostError, InfeedError
from trainer.hosts.exchange import Store, StoreError
from trainer.hosts.exits import Ending

GONE_SECONDS = (
    10.0  # host 0 waits this long for the others at its end, which JAX does not survive elsewhere
)
END_SECONDS = 1.0  # from having said so to the end of a process, on a machine with too much to do
POLL_SECONDS = 0.1
FAILURE, GONE = "failure", "gone"
SETTLED = set[int]()  # calls in which every host has raised an error
# How errors of collectives start when a peer is gone. No peer causes any other error.
ECHO = re.compile(
    r"(UNKNOWN|INTERNAL|UNAVAILABLE|ABORTED|CANCELLED|DEADLINE_EXCEEDED|FAILED_PRECONDITION): "
)

T = TypeVar("T")


class Failure(NamedTuple):
    """The first failure of a call: its host and message. stuck: it made no progress."""

    host: int
    text: str
    stuck: bool = False

    def error(self, count: int) -> HostError:
        """The exception that the other hosts raise."""
        return HostError(f"host {self.host} of {count} failed: " * (count > 1) + self.text)


def report(store: Store, call: int, text: str, stuck: bool = False) -> Failure:
    """Tells the other hosts that this one has failed. Returns the first failure of the call."""
    failure = Failure(store.index, text.partition("\n")[0], stuck)
    with suppress(StoreError):
        return Failure(*store.put_first(f"{FAILURE}/{call}", failure))
    return failure


def report_error(store: Store, call: int, error: BaseException) -> Failure:
    """Reports an error; see report."""
    text = (
        str(error)
        if isinstance(error, InfeedError | Ending)
        else f"{type(error).__name__}: {error}"
    )
    return report(store, call, text)


def failure_of(store: Store) -> Failure | None:
    """The first failure of the run that is not settled."""
    failures = store.by_host(FAILURE)  # by the number of the call
    return next((Failure(*each) for call, each in failures.items() if call not in SETTLED), None)


def depart(store: Store) -> None:
    """Prepares for the end of this process. Host 0 waits until the others have said why they end:
    JAX aborts them after it."""
    with suppress(StoreError):
        store.put(f"{GONE}/{store.index}", True)
        if store.count > 1 and store.index == 0:
            poll(lambda: len(store.by_host(GONE)) == store.count, GONE_SECONDS)
            time.sleep(END_SECONDS)


def poll(look: Callable[[], T], seconds: float) -> T:
    """What `look` returns once that is true, or after this time."""
    stop = time.monotonic() + seconds
    while not (value := look()) and time.monotonic() < stop:
        time.sleep(POLL_SECONDS)
    return value


def echoes(error: BaseException) -> bool:
    """Whether a collective failed, such as one of Orbax, whose error we explain."""
    return bool(ECHO.match(str(error)) or ECHO.match(str(error.__cause__)))


def in_peace(error: BaseException) -> bool:
    """Whether no host has to be told: all hosts end here, or an iterator was dropped."""
    return isinstance(error, GeneratorExit | DisagreementError) or getattr(error, "together", False)
