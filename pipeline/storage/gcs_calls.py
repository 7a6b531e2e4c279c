"""Calls to gs://: one client per process, retries with jitter and a time budget, and errors that
name the object. One that takes long is a log line: a network that is not there is otherwise minutes
of silence.

Credentials are google-auth's defaults. Without any, the client is anonymous, which public buckets
allow."""

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import google.auth
import requests
import urllib3
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth import exceptions as auth
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.exceptions import NotFound, PreconditionFailed
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests.adapters import HTTPAdapter

from pipeline.errors import StorageError
from pipeline.storage.storage import MissingError
from pipeline.storage.waiting import first_line, waiting

TIMEOUT_SECONDS = (10.0, 30.0)  # to connect, and between two pieces of a response
RETRY_SECONDS = 120.0  # per call, with all its attempts
# before the second attempt, and at most; doubles each time, times a random factor
WAIT_SECONDS = (0.5, 16.0)
RETRIED = frozenset({408, 429, 500, 502, 503, 504})
CONNECTIONS = 64  # size of the pool; more threads would wait for each other

T = TypeVar("T")


# The connection failed, was closed or timed out.
LOST = (requests.RequestException, urllib3.exceptions.HTTPError, ConnectionError)


def credentials() -> Any:
    """This process's credentials; anonymous if there are none."""
    return _credentials(_emulator())


def client() -> Any:
    """This process's client. STORAGE_EMULATOR_HOST selects another server, as in Google's own
    tools."""
    return _client(_emulator())


def _emulator() -> str | None:
    return os.environ.get("STORAGE_EMULATOR_HOST")


# By server: a thread that still looks for the credentials of one must not make them those of
# another.
@functools.cache
def _credentials(emulator: str | None) -> Any:
    # which needs none; looking for them may wait for a metadata server that does not exist
    if not emulator:
        with (
            contextlib.suppress(auth.DefaultCredentialsError),
            waiting("find Google's default credentials"),
        ):
            return google.auth.default()[0]
    return AnonymousCredentials()


@functools.cache
def _client(emulator: str | None) -> Any:
    # Objects belong to buckets, not to a project.
    new_client = storage.Client(project="none", credentials=_credentials(emulator))
    adapter = HTTPAdapter(pool_connections=4, pool_maxsize=CONNECTIONS)
    # the default pool has 10 connections, and warns about each one above
    new_client._http.mount("https://", adapter)
    new_client._http.mount("http://", adapter)
    return new_client


# A forked process must not share connections with its parent: each would read the other's
# responses.
os.register_at_fork(after_in_child=_client.cache_clear)


def retrying(tried: Callable[[Exception], Any], left: threading.Event | None = None) -> Retry:
    """The policy of one call. tried: called with every transient failure. left: set once no caller
    waits for the result; failures are then final."""

    def again(error: Exception) -> bool:
        return _is_transient(error) and not (left and left.is_set())

    first, most = WAIT_SECONDS
    return Retry(
        again, initial=first, maximum=most, multiplier=2.0, timeout=RETRY_SECONDS, on_error=tried
    )


def call(
    path: str, action: str, function: Callable[[], T], left: threading.Event | None = None
) -> T:
    """The result of `function`, with retries of transient failures.

    Raises MissingError, a StorageError naming path, status and attempts, or the client's
    PreconditionFailed."""
    failures = list[Exception]()
    try:
        with waiting(f"{action} {path}", failures):
            return retrying(failures.append, left)(function)()
    except PreconditionFailed:
        raise
    except (api.GoogleAPIError, auth.GoogleAuthError, InvalidResponse, *LOST) as error:
        raise named(path, action, error, max(1, len(failures))) from error
    except DataCorruption as error:
        raise StorageError(
            f"cannot {action} {path}: its checksum differs from the bucket's."
        ) from error


def named(path: str, action: str, error: Exception, attempts: int) -> StorageError:
    """The error for a user: the problem, the status, the number of attempts, the remedy."""
    cause = getattr(error, "cause", None) or error  # of a RetryError, the last failure
    status = status_of(cause)
    tried = f" ({attempts} attempts in {RETRY_SECONDS:g} s)" if attempts > 1 else ""
    what = f"cannot {action} {path}: "
    if status == 404:
        bucket = path.split("/")[2]
        if not _bucket_exists(bucket):
            return StorageError(f"{what}bucket {bucket!r} does not exist (404).")
        return MissingError(f"{what}there is no such object (404).")
    if status == 401 or isinstance(cause, auth.GoogleAuthError):
        return StorageError(
            f"{what}no valid credentials ({status or type(cause).__name__}). Run `gcloud auth "
            "application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
        )
    if status == 403:
        return StorageError(
            f"{what}permission denied, or a quota is used up (403). The account needs the role "
            f"Storage Object User on the bucket. Response: {first_line(cause)}"
        )
    return StorageError(
        f"{what}{f'status {status}' if status else type(cause).__name__}{tried}: "
        f"{first_line(cause)}"
    )


def _bucket_exists(bucket: str) -> bool:
    """Called when an object is missing. Lists the bucket, because readers may lack the right to get
    its metadata."""
    try:
        next(
            iter(
                client().list_blobs(bucket, max_results=1, timeout=TIMEOUT_SECONDS[1], retry=None)
            ),
            None,
        )
    except NotFound:
        return False
    except (api.GoogleAPIError, requests.RequestException):
        return True  # unknown; the user asked for the object
    return True


def _is_transient(error: Exception) -> bool:
    if isinstance(error, auth.TransportError):
        return (
            not error.args
            or not isinstance(error.args[0], Exception)
            or _is_transient(error.args[0])
        )
    return isinstance(error, LOST) or status_of(error) in RETRIED


def status_of(error: BaseException) -> int | None:
    """The HTTP status of an exception of the client; None if it has none."""
    if isinstance(error, InvalidResponse):
        return error.response.status_code
    return int(error.code) if isinstance(error, api.GoogleAPICallError) and error.code else None
