"""What tensorstore and Orbax have to be told about arrays in buckets: where they are, who asks, and
for how long a request may take.

Measured on the S3 driver of tensorstore 0.1.86:
- It takes the endpoint from its spec only, and asks Amazon if there is none, whatever
  AWS_ENDPOINT_URL says.
- It does not read AWS_PROFILE, and uses no profile that the spec does not name, not even "default":
  it asks 169.254.169.254 instead (unless AWS_EC2_METADATA_DISABLED is set), and then sends requests
  without credentials. So it gets what boto3 finds in files.
- A conditional write is a HEAD and a PUT without condition, so it does not decide between two
  writers. Orbax has one writer for each object.
- An upload is one PUT. Orbax begins another object after 400 MiB, and cuts parts of arrays at 2
  GiB, so none is above the 5 GB that S3 allows for it.
- The variables http_proxy and no_proxy count, also for an endpoint on this machine."""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

from pipeline.errors import OptionError
from pipeline.packages import version_of

# After 1, 2, 4, ... 32, 32 s: about two minutes, as for our own requests. Tensorstore's default,
# 32, is 15 minutes.
RETRIES = {"max_retries": 7}
# A transfer without progress for a minute counts as such a failure; tensorstore would wait forever.
STALL = {
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "60",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}
Spec = dict[str, Any]


def _gcs(bucket: str, name: str) -> Spec:
    return {"driver": "gcs", "bucket": bucket, "path": name}


def _s3(bucket: str, name: str) -> Spec:
    from pipeline.storage.s3_client import service  # its client is an extra

    at = service()
    where = {"bucket": bucket}
    if endpoint := at.endpoint_of(bucket):
        where = {"endpoint": endpoint, "aws_region": "us-east-1"}  # the client's default, too
    if at.region:
        where["aws_region"] = at.region
    return {"driver": "s3", "path": name, **where, "aws_credentials": _credentials(at.credentials)}


def _credentials(provider: Callable[[], Mapping[str, Any]] | None) -> Spec:
    """Where tensorstore reads credentials. Never the secret itself: errors quote specs.

    Those from files are as old as the spec; Orbax makes one for each save. boto3 renews them ten
    minutes before they expire."""
    from pipeline.storage.s3_client import is_true

    if is_true("AWS_SKIP_SIGNATURE"):
        return {"type": "anonymous"}
    if provider is None:
        # Without variables, a role. The search logs a line to stderr for each place that has none.
        return {"type": "environment" if os.environ.get("AWS_ACCESS_KEY_ID") else "default"}
    found = provider()
    lines = [
        "[default]",
        f"aws_access_key_id={found['access_key_id']}",
        f"aws_secret_access_key={found['secret_access_key']}",
    ]
    if token := found.get("token"):
        lines.append(f"aws_session_token={token}")
    file = _in_memory("\n".join(lines))
    return {
        "type": "profile",
        "profile": "default",
        "credentials_file": file,
        "config_file": "/dev/null",
    }


@functools.cache
def _in_memory(text: str) -> str:
    """The path of a file that is on no disk, and that ends with this process."""
    fd = os.memfd_create("credentials")
    os.write(fd, text.encode())
    return f"/proc/self/fd/{fd}"


KVSTORES: dict[str, Callable[[str, str], Spec]] = {"gs": _gcs, "s3": _s3}
"""Scheme -> how tensorstore names the objects of a bucket whose names begin with a text."""


def kvstore(path: str) -> Spec:
    """Tensorstore's spec for the objects below a path such as gs://bucket/dir/."""
    scheme, _, place = path.partition("://")
    bucket, _, name = place.partition("/")
    return KVSTORES[scheme](bucket, name)


def bounds() -> Spec:
    """Tensorstore's context with bounds on retries. Also makes it fail a transfer without
    progress."""
    for variable, value in STALL.items():
        os.environ.setdefault(variable, value)
    return {"gcs_request_retries": RETRIES, "s3_request_retries": RETRIES}


def prepare_orbax(path: str) -> None:
    """Bounds Orbax's requests for arrays in buckets, and makes it use kvstore() for those that it
    would take for files.

    Raises OptionError if this Orbax makes its specs elsewhere: it would write to a directory "s3:".
    If it only keeps its contexts elsewhere (a test would report both), it retries for longer."""
    scheme = path.partition("://")[0]
    try:
        from orbax.checkpoint._src.serialization import tensorstore_utils as orbax

        with contextlib.suppress(AttributeError):
            for context in (orbax._BASE_TS_CONTEXT, orbax._DEFAULT_OCDBT_TS_CONTEXT):
                context.update(bounds())
        if not hasattr(orbax.build_kvstore_tspec, "__wrapped__"):
            orbax.build_kvstore_tspec = _for_all_buckets(orbax.build_kvstore_tspec)
        array = orbax.ArrayReadSpec(path, "name", use_zarr3=False, use_ocdbt=True).json
        sharding = orbax.get_sharding_tensorstore_spec(path, "name")
        drivers = {array["kvstore"]["base"]["driver"], sharding["kvstore"]["driver"]}
        if "file" in drivers:
            raise ValueError(f"its drivers are {drivers}")
    except (ImportError, AttributeError, KeyError, TypeError, ValueError) as error:
        if scheme != "gs":  # which Orbax knows
            raise OptionError(
                f"{path}: infeed cannot make orbax-checkpoint {version_of('orbax-checkpoint')} "
                f"write to {scheme}://. Install orbax-checkpoint 0.12.8, or use a local disk."
            ) from error


def _for_all_buckets(build: Callable[..., Spec]) -> Callable[..., Spec]:
    """Orbax's function for a spec. Those for gs:// have what is right for any bucket, such as the
    merging of reads, so they are made first, and then name other objects."""

    @functools.wraps(build)
    def built(directory: str, *args: Any, **options: Any) -> Spec:
        scheme, _, place = directory.partition("://")
        if not place or scheme == "gs":
            return build(directory, *args, **options)
        spec = build(f"gs://{place}", *args, **options)
        base = spec.get("base", spec)  # of OCDBT
        name = base.pop("path")
        bucket = base.pop("bucket")
        base.pop("driver")
        base.update(KVSTORES[scheme](bucket, name))
        return spec

    return built
