"""Turns the answers of Google's services into errors of one line with a remedy."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import Any

from pipeline.errors import ConversionError, InfeedError

_LOG_IN = (
    "Run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS to a key "
    "file."
)
_QUOTA = (
    "Use fewer workers (--max_num_workers), another --worker_machine_type or --region, or request "
    "a higher quota at https://console.cloud.google.com/iam-admin/quotas."
)
# Pattern in the service's reason for a failed job -> remedy. The first match counts.
_ADVICE = {
    "(?i)quota|resource.?pool.?exhausted|does not have enough resources": _QUOTA,
    "ModuleNotFoundError|No module named": (
        "A package is missing on the workers: add it with --extra_package, or use an image that "
        "has it (--sdk_container_image)."
    ),
    "(?i)pip install|No matching distribution|failed to install packages": (
        "Workers install the wheel's dependencies from PyPI as they start. Without internet "
        "access, use an image that has them (--sdk_container_image)."
    ),
    "(?i)permission|forbidden|403|denied": (
        "The workers' service account needs the roles Dataflow Worker on the project and Storage "
        "Object User on the buckets."
    ),
}


def check_credentials() -> None:
    """Raises InfeedError if there are none. Beam would continue anonymously and be refused."""
    import google.auth
    from google.auth.exceptions import DefaultCredentialsError

    try:
        google.auth.default()
    except DefaultCredentialsError as e:
        raise InfeedError(f"--runner=dataflow: no credentials for Google Cloud. {_LOG_IN}") from e


def check_bucket(client: Any, path: str) -> None:
    """Raises ConversionError without permission to get the bucket's metadata, as Beam does before
    staging files."""
    from google.api_core.exceptions import Forbidden

    bucket = path.split("/")[2]
    try:
        client.get_bucket(bucket, timeout=60)
    except Forbidden as e:
        raise ConversionError(
            f"no permission to get bucket {bucket!r}, as Beam does before it stages files there "
            "(403). The account needs the role Storage Legacy Bucket Reader on it, or another "
            "--staging_location."
        ) from e


@contextlib.contextmanager
def as_ours(project: str, region: str) -> Iterator[None]:
    """Turns exceptions of Google's clients in the block into ConversionErrors of one line."""
    from google.api_core.exceptions import GoogleAPICallError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        yield
    except GoogleAPICallError as e:
        raise ConversionError(_refusal(int(e.code or 0), _line(e.message), project, region)) from e
    except GoogleAuthError as e:
        raise ConversionError(f"Dataflow: no valid credentials ({_line(str(e))}). {_LOG_IN}") from e
    except (RequestException, OSError) as e:  # Beam raises OSError if staging fails
        raise ConversionError(f"cannot reach Dataflow or stage the job: {_line(str(e))}") from e


def _refusal(status: int, answer: str, project: str, region: str) -> str:
    reply = f"The service answered ({status}): {answer}"
    if status == 401:
        return f"Dataflow: no valid credentials. {_LOG_IN} {reply}"
    if re.search("has not been used|is disabled|SERVICE_DISABLED", answer):
        return (
            f"The Dataflow API is disabled in project {project}. Enable it: `gcloud services "
            f"enable dataflow.googleapis.com --project={project}`. {reply}"
        )
    if status == 429 or re.search("(?i)quota", answer):
        return f"Dataflow: a quota of project {project} in {region} is exhausted. {_QUOTA} {reply}"
    if status == 403:
        return (
            f"Dataflow: no permission in project {project}, or there is no such project. The "
            "account needs the roles Dataflow Developer on it and Service Account User on the "
            f"workers' account. {reply}"
        )
    if status in (400, 404) and re.search("(?i)region|location|endpoint", answer):
        return (
            f"Dataflow has no region {region}. `gcloud compute regions list` shows them: "
            f"--region=NAME. {reply}"
        )
    return f"Dataflow refused the job. {reply}"


def reason_of(messages: Sequence[str]) -> str:
    """The message that best explains why a job failed: a traceback rather than a summary of
    attempts."""

    def rank(message: str) -> int:
        return ("Traceback" in message) - ("work item was attempted" in message)

    return max(reversed(messages), key=rank) if messages else "the service gives no reason."


def advice(reason: str) -> str:
    """The remedy, after a space; "" if there is none."""
    return next((f" {help}" for pattern, help in _ADVICE.items() if re.search(pattern, reason)), "")


def _line(text: str) -> str:
    return " ".join(re.sub(r"^[A-Z]+ https?://\S+: ", "", text).split())[:400]
