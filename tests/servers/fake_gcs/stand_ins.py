"""Answers and parts of requests that fake-gcs-server 1.54 has not, or does not take. Standard library only."""

import itertools
import json
import re
from urllib.parse import quote

from fake_gcs.answers import Answer, whole

PROJECT = "fake-project"
TOKEN = "fake-token"  # the only credential there is: it opens nothing
_TOKEN_ANSWER = {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
_ACCOUNT = {
    "aliases": ["default"],
    "email": f"fake@{PROJECT}.iam.gserviceaccount.com",
    "scopes": ["https://www.googleapis.com/auth/cloud-platform"],
}
_LAYOUT = {"kind": "storage#storageLayout", "hierarchicalNamespace": {"enabled": False}}


def stand_in(method: str, path: str) -> Answer | None:
    """The answer to what the server does not know: metadata server, token, storageLayout. None: ask the server."""
    # https://oauth2.googleapis.com, and of old https://www.googleapis.com, where tensorstore asks
    if path in ("/token", "/oauth2/v3/token") and method == "POST":
        return whole(json.dumps(_TOKEN_ANSWER).encode())
    # google-auth asks for the root to see whether a metadata server is there.
    if path == "/" or path.startswith("/computeMetadata/"):
        return _metadata(path)
    # TensorFlow asks before it renames a folder.
    if method == "GET" and re.fullmatch(r"/storage/v1/b/[^/]+/storageLayout", path):
        return whole(json.dumps(_LAYOUT).encode())
    return None


def _metadata(path: str) -> Answer:
    flavour = ("Metadata-Flavor", "Google")
    texts = {"/project/project-id": PROJECT, "/universe/universe-domain": "googleapis.com"}
    for end, text in texts.items():
        if path.endswith(end):
            return whole(text.encode(), headers=(flavour, ("Content-Type", "application/text")))
    value = _TOKEN_ANSWER if path.endswith("/token") else _ACCOUNT
    return whole(
        json.dumps(value).encode(), headers=(flavour, ("Content-Type", "application/json"))
    )


def ignored(query: str, batch: bytes) -> str | None:
    """What the request asks for that would be passed over in silence; None: nothing. In a batch more is."""
    found = re.search("matchGlob|ifSourceGeneration|ifSourceMetageneration|ifMetageneration", query)
    found = found or re.search(
        "(?:ifGeneration|ifMetageneration)(?:Not)?Match", batch.decode("latin-1")
    )
    return found.group() if found else None


def with_content_ids(batch: bytes) -> bytes:
    """The batch with a Content-ID in each part: the server skips parts without, google-cloud-storage sends none."""
    numbers = itertools.count()
    part = re.compile(rb"(?i)(content-type: application/http\r?\n)(?!content-id:)")
    return part.sub(lambda match: match.group(1) + b"Content-ID: <%d>\r\n" % next(numbers), batch)


def with_name(target: str, body: bytes) -> str:
    """The target of an upload with the object's name in its query, where GCS takes it too.

    google-cloud-storage sends it in the body, as JSON or in the first part of a multipart body; patterns, logs and
    preconditions want to know it."""
    if not target.startswith("/upload/") or "uploadType=" not in target or "name=" in target:
        return target
    head = body if body[:1] == b"{" else body.partition(b"\r\n\r\n")[2].partition(b"\r\n--")[0]
    try:
        return f"{target}&name={quote(json.loads(head)['name'], safe='')}"
    except (ValueError, KeyError):
        return target
