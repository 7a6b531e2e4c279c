"""The client for buckets that speak S3, and its errors as messages that name the object.

Endpoint, region and credentials come from the environment and from files, as in AWS's own tools;
boto3, if installed, reads the files. They are part of no path and no job, so no log and no file
contains them."""

import functools
import os
import random
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import obstore
from obstore import exceptions as failed
from obstore.store import S3Store

from pipeline.errors import StorageError
from pipeline.storage.storage import MissingError
from pipeline.storage.waiting import waiting

CLIENT: dict[str, Any] = {"connect_timeout": "10s", "read_timeout": "30s", "timeout": "180s"}
RETRIES: dict[str, Any] = {"max_retries": 10, "retry_timeout": timedelta(seconds=120)}
TRIES = 6
WAIT_SECONDS = 1.0  # the longest wait before the second try; twice that before the third, ...
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")  # the client's own last
_REGION = "us-east-1"  # the client's default
_VALID = timedelta(minutes=10)  # boto3 renews credentials before they are left with less
NAMES = (
    "Names in s3:// have no control characters, and no part that is empty, '.' or '..'; rename "
    "what has one."
)
_METADATA = "169.254.169.254"  # where the client looks for a role if it has no credentials
T = TypeVar("T")
_known = set[str]()  # buckets that exist
_FORKED = (
    "s3:// was used before this process was forked, and its client cannot be shared. Start workers "
    'by "spawn" or "forkserver" (in PyTorch: DataLoader(multiprocessing_context="spawn")).'
)
_NO_CREDENTIALS = (
    "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE with boto3 installed, or run "
    "on a machine with a role."
)
_OF_CREDENTIALS = re.compile("AccessKey|Signature|Token|Credential|AuthHeader|RequestExpired")


class Service(NamedTuple):
    """Where buckets are, and with which credentials to ask. endpoint: None for Amazon's own.
    virtual: whether a bucket is part of the host name. credentials: None if the client finds them
    in the environment."""

    endpoint: str | None
    region: str | None
    virtual: bool
    credentials: Any = None

    def endpoint_of(self, bucket: str) -> str | None:
        """The URL to which the names of objects are appended; None for Amazon's own."""
        if not (self.endpoint and self.virtual):
            return self.endpoint and f"{self.endpoint}/{bucket}"
        scheme, _, host = self.endpoint.partition("://")
        return f"{scheme}://{bucket}.{host}"


@functools.cache
def service() -> Service:
    """The service of this process. Raises StorageError for settings that only boto3 can read, if it
    is not installed."""
    env = os.environ
    ignored = is_true("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS")
    endpoint = None if ignored else next(filter(None, map(env.get, _ENDPOINTS)), None)
    virtual = is_true("AWS_VIRTUAL_HOSTED_STYLE_REQUEST")
    if endpoint and not re.match(r"https?://[^/]", endpoint):
        raise StorageError(
            f"AWS_ENDPOINT_URL={endpoint!r} must be like https://host or http://host:port."
        )
    if endpoint and virtual and re.match(r"https?://(\[|[\d.]+(:|/|$))", endpoint):
        raise StorageError(
            f"AWS_VIRTUAL_HOSTED_STYLE_REQUEST is set, but the host of {endpoint} is an address, "
            "to which no bucket can be prepended. Give a host name, or unset the variable."
        )
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    stated = Service(endpoint and endpoint.rstrip("/"), region, virtual)
    variant = is_true("AWS_USE_FIPS_ENDPOINT") or is_true("AWS_USE_DUALSTACK_ENDPOINT")
    enough = not variant and (env.get("AWS_ACCESS_KEY_ID") or is_true("AWS_SKIP_SIGNATURE"))
    files = _has_files()
    if enough and not files:
        return stated
    try:
        return _completed(stated)
    except ImportError as error:
        if enough or not (files or variant):
            return stated
        raise StorageError(
            "s3://: AWS_PROFILE, AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT and the files "
            "in ~/.aws need boto3. Install it: pip install boto3; or set AWS_ACCESS_KEY_ID, "
            "AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL."
        ) from error


def _completed(stated: Service) -> Service:
    """Adds what boto3 finds in files. It also finds a role; tensorstore would log each place that
    has none."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session()
        region = stated.region or session.region_name
        # by default, the endpoint of us-east-1 names no region
        regional = Config(s3={"us_east_1_regional_endpoint": "regional"})
        client = session.client("s3", region_name=region or _REGION, config=regional)
        has_credentials = session.get_credentials()
        provider = Boto3CredentialProvider(session, ttl=_VALID) if has_credentials else None
    except (BotoCoreError, ValueError) as error:
        raise StorageError(f"s3://: {error}. See AWS_PROFILE and the files in ~/.aws.") from error
    endpoint = stated.endpoint or client.meta.endpoint_url.rstrip("/")
    style = (client.meta.config.s3 or {}).get("addressing_style")
    return Service(
        None if endpoint == _amazon(region) else endpoint,
        region,
        stated.virtual or style == "virtual",
        provider,
    )


def is_true(variable: str) -> bool:
    """Whether a variable of the environment is set to 1 or true."""
    return os.environ.get(variable, "").lower() in ("1", "true")


def _amazon(region: str | None) -> str:
    return f"https://s3.{region or _REGION}.amazonaws.com"


def _has_files() -> bool:
    """Whether there are settings that AWS's tools read and the client does not."""
    files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
    return "AWS_PROFILE" in os.environ or any(
        Path(os.environ.get(variable, f"~/.aws/{name}")).expanduser().is_file()
        for variable, name in files.items()
    )


@functools.cache
def _store(bucket: str) -> S3Store:
    at = service()
    plain = "." not in bucket  # Amazon's certificates do not cover names with dots
    if not at.endpoint and any(variable in os.environ for variable in _ENDPOINTS):
        # we ignore it, or it is empty, but the client would use it
        at = at._replace(endpoint=_amazon(at.region), virtual=plain)
    endpoint = at.endpoint_of(bucket)
    # the endpoint contains the bucket, in either style
    options: dict[str, Any] = {"virtual_hosted_style_request": bool(endpoint) or plain}
    options["disable_bulk_delete"] = True  # which not every service has
    if endpoint:
        options["aws_endpoint_url_s3"] = endpoint  # "endpoint" would yield to the variable
    if at.region:
        options["region"] = at.region
    client = CLIENT | {"allow_http": bool(endpoint and endpoint.startswith("http://"))}
    return S3Store(
        bucket,
        config=options,  # pyright: ignore[reportArgumentType]
        client_options=client,  # pyright: ignore[reportArgumentType]
        retry_config=RETRIES,  # pyright: ignore[reportArgumentType]
        credential_provider=at.credentials,
    )


def store_of(bucket: str) -> S3Store:
    """This process's client for a bucket. Raises StorageError in a process that was forked, and for
    settings that make no client."""
    if _pid() != os.getpid():
        raise StorageError(_FORKED)
    try:
        return _store(bucket)
    except (failed.BaseError, ValueError) as error:
        told = str(error).splitlines()[0]
        raise StorageError(f"s3://{bucket}: {told}. See the variables AWS_*.") from error


@functools.cache
def _pid() -> int:
    """The process that first used a client: its threads do not survive a fork, so that a forked
    one would crash."""
    return os.getpid()


def parts(path: str) -> tuple[str, str]:
    """(bucket, key) of a path such as s3://bucket/dir/name."""
    bucket, _, key = path.removeprefix("s3://").partition("/")
    if not path.startswith("s3://") or not bucket:
        raise StorageError(
            f"{path!r} is not a path in a bucket. It must be like s3://bucket/dir/name."
        )
    if key.startswith("/"):  # the client would drop the slash
        raise StorageError(f"cannot use {path}. {NAMES}")
    return bucket, key


def call(
    path: str,
    action: str,
    function: Callable[[], T],
    *,
    tries: int = TRIES,
    left: threading.Event | None = None,
) -> T:
    """The result of `function`. Repeats it if the response was lost and the client does not retry,
    as for listings and conditional writes. left: see ranges.Read.

    Raises MissingError or a StorageError that names path, status and attempts, or the client's
    AlreadyExistsError or PreconditionError."""
    failures = list[Exception]()
    end = time.monotonic() + RETRIES["retry_timeout"].total_seconds()
    with waiting(f"{action} {path}", failures):
        while True:
            try:
                return function()
            except (failed.AlreadyExistsError, failed.PreconditionError, StorageError):
                raise
            except (failed.BaseError, OSError, ValueError) as error:
                failures.append(error)
                attempts = sum(1 + retries(failure) for failure in failures)
                final = attempts >= tries or time.monotonic() > end or (left and left.is_set())
                if final or not _is_lost(error):
                    raise _named(path, action, error, attempts) from error
            time.sleep(random.SystemRandom().uniform(0, WAIT_SECONDS * len(failures)))


def retries(error: Exception) -> int:
    """How often the client retried before it raised this."""
    return int(_found(r"\bafter (\d+) retries", str(error)) or 0)


def _is_lost(error: Exception) -> bool:
    text = str(error)
    return isinstance(error, failed.GenericError | OSError) and not re.search(
        f"status code:|redirect|builder error|{_METADATA}", text
    )


def _named(path: str, action: str, error: Exception, attempts: int) -> StorageError:
    what = f"cannot {action} {path}: "
    text = str(error).split("\n\nDebug source", 1)[0]
    code = _found(r"<Code>(\w+)</Code>", text)
    status = _found(r"status code: (\d+)", text)
    if code == "NoSuchBucket" or (status == "404" and not _has_bucket(path)):
        return StorageError(f"{what}bucket {parts(path)[0]!r} does not exist (404).")
    if status == "404":
        return MissingError(f"{what}there is no such object (404).")
    if isinstance(error, ValueError | failed.InvalidPathError):
        return StorageError(f"{what}{text.splitlines()[0]}. {NAMES}")
    if _METADATA in text or _OF_CREDENTIALS.search(code):
        return StorageError(f"{what}no valid credentials ({code or status}). {_NO_CREDENTIALS}")
    if status in ("401", "403"):
        return StorageError(
            f"{what}permission denied ({status}{code and f', {code}'}). The account needs to list, "
            "read, write and delete in this bucket."
        )
    if status.startswith("3") or "redirect" in text:
        return StorageError(f"{what}the bucket is in another region. Set AWS_REGION to its own.")
    tried = f" ({attempts} attempts)" if attempts > 1 else ""
    told = _found(r"<Message>(.*?)</Message>", text) or text.splitlines()[0].rsplit(" - ", 1)[-1]
    problem = f"status {status}{code and f', {code}'}" if status else "no valid answer"
    return StorageError(f"{what}{problem}{tried}: {told[:300]}")


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text, re.DOTALL)
    return match[1] if match else ""


def _has_bucket(path: str) -> bool:
    """Called when an object is missing: a HEAD does not tell whether its bucket is, too. Asks once
    per bucket."""
    bucket, _ = parts(path)
    if bucket not in _known:
        try:
            next(iter(obstore.list(store_of(bucket), chunk_size=1)), None)
        except failed.BaseError as error:
            return "NoSuchBucket" not in str(error)  # else unknown; the user asked for the object
        _known.add(bucket)
    return True
