"""What goes wrong with Dataflow, in words of ours: what, where, and what to do. One line each.

Imports Google's client inside functions alone."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.shards.errors import ConversionError, InfeedError

__all__ = ["advice", "as_ours", "check_bucket", "check_credentials", "reason_of"]

_LOG_IN = "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key file."
_QUOTA = (
    "Take fewer workers (--max_num_workers), another --worker_machine_type or --region, or ask for more at "
    "https://console.cloud.google.com/iam-admin/quotas."
)
# What the service says when a job failed -> what helps. The first that is found counts.
_ADVICE = {
    "(?i)quota|resource.?pool.?exhausted|does not have enough resources": _QUOTA,
    "ModuleNotFoundError|No module named": "A package is missing on the workers: add it by --extra_package, or take an "
    "image that has it (--sdk_container_image).",
    "(?i)pip install|No matching distribution|failed to install packages": "Workers install what our wheel needs from "
    "PyPI as they start. Without a way to the internet, take an image that has it (--sdk_container_image).",
    "(?i)permission|forbidden|403|denied": "The workers' service account needs the roles Dataflow Worker on the "
    "project and Storage Object User on the buckets.",
}


def check_credentials() -> None:
    """Raises InfeedError where there are none: Beam would go on anonymously, and be refused."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError as e:
        raise InfeedError(f"--runner=dataflow: no credentials for Google Cloud. {_LOG_IN}") from e


def check_bucket(client: Any, path: str) -> None:
    """Raises ConversionError where the bucket itself may not be looked at, as Beam does before it stages a file."""
    from google.api_core.exceptions import Forbidden

    bucket = path.split("/")[2]
    try:
        client.get_bucket(bucket, timeout=60)
    except Forbidden as e:
        raise ConversionError(
            f"no permission to look at bucket {bucket!r}, which Beam does before it stages files there (403). The "
            "account needs the role Storage Legacy Bucket Reader on it, or another --staging_location."
        ) from e


@contextlib.contextmanager
def as_ours(project: str, region: str) -> Iterator[None]:
    """An exception of Google's clients in the block becomes a ConversionError of one line."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAPICallError as e:
        raise ConversionError(_refusal(int(e.code or 0), _line(e.message), project, region)) from e
    except GoogleAuthError as e:
        raise ConversionError(f"Dataflow: no valid credentials ({_line(str(e))}). {_LOG_IN}") from e
    except (RequestException, OSError) as e:  # of the staging, which Beam makes an OSError of
        raise ConversionError(f"Dataflow cannot be reached, or the job not be staged: {_line(str(e))}") from e


def _refusal(status: int, said: str, project: str, region: str) -> str:
    says = f"The service says ({status}): {said}"
    if status == 401:
        return f"Dataflow: no valid credentials. {_LOG_IN} {says}"
    if re.search("has not been used|is disabled|SERVICE_DISABLED", said):
        return (
            f"Dataflow's API is off in project {project}. Switch it on: `gcloud services enable "
            f"dataflow.googleapis.com --project={project}`. {says}"
        )
    if status == 429 or re.search("(?i)quota", said):
        return f"Dataflow: a quota of project {project} in {region} is used up. {_QUOTA} {says}"
    if status == 403:
        return (
            f"Dataflow: no permission in project {project}, or there is no such project. The account needs the roles "
            f"Dataflow Developer on it and Service Account User on the workers' account. {says}"
        )
    if status in (400, 404) and re.search("(?i)region|location|endpoint", said):
        return f"Dataflow knows no region {region}. `gcloud compute regions list` shows them: --region=NAME. {says}"
    return f"Dataflow refused the job. {says}"


def reason_of(messages: Sequence[str]) -> str:
    """Of all that the service says of a failed job, what says why: a traceback before a summary of attempts."""

    def rank(message: str) -> int:
        return ("Traceback" in message) - ("work item was attempted" in message)

    return max(reversed(messages), key=rank) if messages else "the service gives no reason."


def advice(reason: str) -> str:
    """What to do about it, with a space before it; nothing where we do not know."""
    return next((f" {help}" for pattern, help in _ADVICE.items() if re.search(pattern, reason)), "")


def _line(text: str) -> str:
    return " ".join(re.sub(r"^[A-Z]+ https?://\S+: ", "", text).split())[:400]
