"""What may go wrong with a request: four kinds of fault, and the table of those that wait for their request.

Tests build the faults (through Server.fail), the gateway's process strikes with them; they travel between the two as
JSON. Standard library only."""

import hashlib
import json
import re
import threading
from dataclasses import asdict, dataclass, field
from typing import ClassVar, Literal

When = Literal["before", "after"]


@dataclass(frozen=True)
class Status:
    """An error answer as GCS gives it, with a Retry-After of so many seconds if asked.

    `when="after"`: the server has done what was asked, and the client hears of an error all the same."""

    code: int
    retry_after: int | None = None
    when: When = "before"


@dataclass(frozen=True)
class Reset:
    """The connection is reset (RST) in place of an answer."""

    when: When = "before"


@dataclass(frozen=True)
class Short:
    """The answer's head with its full Content-Length, then half of its body, then the end of the connection."""

    when: ClassVar[When] = "after"


@dataclass(frozen=True)
class Stall:
    """Nothing for so many seconds, then all goes on; None: for ever (until the client leaves, or Server.reset())."""

    seconds: float | None = None
    when: When = "before"


Action = Status | Reset | Short | Stall
ACTIONS = {kind.__name__: kind for kind in (Status, Reset, Short, Stall)}


@dataclass(frozen=True)
class Fault:
    """Strikes requests whose "METHOD path?query" has a match of the pattern (re.search).

    The first `skip` matches pass; of the later ones each is struck with probability `share`, decided by (seed, number
    of the match) alone, until `times` were struck (None: no end)."""

    pattern: str
    action: Action
    times: int | None = 1
    skip: int = 0
    share: float = 1.0
    seed: int = 0

    def __post_init__(self):
        re.compile(self.pattern)
        if type(self.action) not in ACTIONS.values():
            raise TypeError(
                f"action={self.action!r} is not a fault. Allowed: {', '.join(ACTIONS)}."
            )

    def to_json(self) -> str:
        return json.dumps(
            asdict(self) | {"action": {"kind": type(self.action).__name__, **asdict(self.action)}}
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> "Fault":
        fields = json.loads(text)
        action = fields.pop("action")
        return cls(action=ACTIONS[action.pop("kind")](**action), **fields)

    def hits(self, number: int) -> bool:
        """Whether the match of this number, counted from 0, is struck (`times` apart)."""
        if number < self.skip:
            return False
        draw = hashlib.blake2b(f"{self.seed}/{number}".encode(), digest_size=8).digest()
        return int.from_bytes(draw, "big") < self.share * 2**64


@dataclass
class _Armed:
    fault: Fault
    seen: int = 0
    struck: int = 0


@dataclass
class Faults:
    """The faults that are set, asked once a request. Safe between threads."""

    armed: list[_Armed] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        with self.lock:
            self.armed.append(_Armed(fault))

    def clear(self) -> None:
        with self.lock:
            self.armed.clear()

    def strike(self, line: str) -> Action | None:
        """What happens to this "METHOD path?query": faults are asked in the order they were set, until one strikes."""
        with self.lock:
            for armed in self.armed:
                fault = armed.fault
                if (fault.times is not None and armed.struck >= fault.times) or not re.search(
                    fault.pattern, line
                ):
                    continue
                armed.seen += 1
                if fault.hits(armed.seen - 1):
                    armed.struck += 1
                    return fault.action
        return None
