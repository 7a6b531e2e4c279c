"""/_gateway/: how a test tells the gateway what to do, and asks what happened. Standard library only."""

import json
from dataclasses import dataclass, field

from fake_gcs.answers import Answer, error, whole
from fake_gcs.faults import Fault, Faults
from fake_gcs.log import Log

PREFIX = "/_gateway/"


@dataclass
class Orders:
    """What tests have ordered, and the log that they read."""

    faults: Faults = field(default_factory=Faults)
    log: Log = field(default_factory=Log)
    resets: int = 0  # a stall ends when it changes

    def answer(self, method: str, path: str, body: bytes) -> Answer:
        """POST faults (a Fault's JSON), POST reset, GET log. Never logged, never struck."""
        match method, path.removeprefix(PREFIX):
            case "POST", "faults":
                self.faults.add(Fault.from_json(body))
            case "POST", "reset":
                self.faults.clear()
                self.log.clear()
                self.resets += 1
            case "GET", "log":
                return whole(json.dumps(self.log.rows()).encode())
            case _:
                return error(
                    404, f"{method} {path}: there are POST faults, POST reset and GET log."
                )
        return whole(b"", 204, ())
