"""ifGenerationMatch and ifGenerationNotMatch, as GCS means them. Standard library only.

fake-gcs-server 1.54 looks at them in multipart uploads alone: resumable and simple uploads, downloads, deletes and
copies go through whatever they say, and two writers that both ask for generation 0 both succeed.
https://cloud.google.com/storage/docs/request-preconditions"""

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, quote

_NAMED = "/b/([^/]+)/o/([^/]+)"
_DESTINATION = re.compile(f"/storage/v1/b/[^/]+/o/[^/]+/(?:rewriteTo|copyTo){_NAMED}")
_OBJECT = re.compile(f"/(?:download/)?storage/v1{_NAMED}(?:/compose)?")
_UPLOAD = re.compile("/upload/storage/v1/b/([^/]+)/o")

_PARAMETERS = ("ifGenerationMatch", "ifGenerationNotMatch", "generation")


def subject(path: str, query: str) -> str | None:
    """The path of the metadata of the object that the request reads or writes; None: of no single object."""
    if found := _DESTINATION.fullmatch(path) or _OBJECT.fullmatch(path):
        bucket, name = found.groups()
        return f"/storage/v1/b/{bucket}/o/{name}"
    if (found := _UPLOAD.fullmatch(path)) and (names := parse_qs(query).get("name")):
        return f"/storage/v1/b/{found.group(1)}/o/{quote(names[0], safe='')}"
    return None


@dataclass(frozen=True)
class Preconditions:
    """What a request demands of the object's present generation; 0 stands for no object."""

    match: int | None = None
    not_match: int | None = None
    exact: int | None = None  # of a delete: this generation or nothing; the server deletes any

    @classmethod
    def of(cls, query: str) -> "Preconditions":
        values = parse_qs(query)
        return cls(*(int(values[key][0]) if key in values else None for key in _PARAMETERS))

    def __bool__(self) -> bool:
        return self != Preconditions()

    def refusal(self, generation: int, *, reads: bool) -> int | None:
        """The status that refuses the request, given the generation that the object has; None: it may pass."""
        if reads and not generation:
            return None  # the server's own 404
        if not reads and self.exact is not None and self.exact != generation:
            return 404
        if self.match is not None and self.match != generation:
            return 412
        if self.not_match is not None and self.not_match == generation:
            return 304 if reads else 412
        return None
