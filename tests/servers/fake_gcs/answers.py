"""An answer on its way to a client. Standard library only."""

import http.client
import json
from dataclasses import dataclass

_JSON = ("Content-Type", "application/json; charset=UTF-8")
_REASONS = {
    400: "invalid",
    403: "forbidden",
    404: "notFound",
    408: "requestTimeout",
    412: "conditionNotMet",
    429: "rateLimitExceeded",
}


@dataclass(frozen=True)
class Answer:
    """A head, and its body: bytes, or the server's response that has `length` bytes to come. HEAD: length alone."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes | http.client.HTTPResponse
    length: int


def whole(
    body: bytes, status: int = 200, headers: tuple[tuple[str, str], ...] = (_JSON,)
) -> Answer:
    """An answer whose body is there already."""
    return Answer(status, list(headers), body, len(body))


def error(code: int, message: str) -> Answer:
    """An error as GCS's JSON API gives it."""
    detail = {"message": message, "domain": "global", "reason": _REASONS.get(code, "backendError")}
    return whole(
        json.dumps({"error": {"code": code, "message": message, "errors": [detail]}}).encode(), code
    )
