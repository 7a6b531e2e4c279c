"""Submits a job to Dataflow and follows it to its end: link, states, warnings and counts.

The commit is part of the graph, so a job needs no launcher to complete: --detach and Ctrl-C lose
nothing."""

import contextlib
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from pipeline.console.console import Console, say
from pipeline.errors import ConversionError, InfeedError
from pipeline.sizes import format_bytes
from pipeline.storage.storage import join

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
POLL_SECONDS = 10.0
_REASON_POLLS = 6  # the reason for a failure may appear half a minute after the failure
_OVER = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}


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


def run(job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
    """Submits a job and waits for its end. Returns False without waiting after --detach or writing
    a template.

    Raises OptionError or ConversionError if the job is refused, fails or is cancelled;
    SystemExit(130) on Ctrl-C."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    from beam_jobs.graph import pipeline_of

    pipeline: Any = pipeline_of(job, options)
    google = options.view_as(GoogleCloudOptions)
    with as_ours(google.project, google.region):
        result = pipeline.run()
    if google.template_location:
        run_it = (
            f"gcloud dataflow jobs run NAME --gcs-location={google.template_location} "
            f"{_place(google)}"
        )
        say(console, f"dataflow: wrote template {google.template_location}. Run it: {run_it}")
        return False
    submitted = _Submitted(pipeline.runner.dataflow_client, result.job_id(), console)
    url = f"https://console.cloud.google.com/dataflow/jobs/{google.region}/{submitted.id}?project={google.project}"
    say(console, f"dataflow: submitted {google.job_name}: {url}")
    state = (
        "The job continues without this command; it is complete when "
        f"{join(job.output_dir, 'manifest.json')} exists. To cancel it: gcloud dataflow jobs "
        f"cancel {submitted.id} {_place(google)}"
    )
    if waiting.detach:
        say(console, f"dataflow: {state}")
        return False
    try:
        with as_ours(google.project, google.region):
            submitted.wait()
    except KeyboardInterrupt:
        if waiting.cancel_on_interrupt:
            submitted.cancel()
            state = "The job is cancelled. Run the same command again to resume."
        say(console, f"dataflow: interrupted. {state}")
        raise SystemExit(130) from None
    return True


def _place(google: Any) -> str:
    return f"--project={google.project} --region={google.region}"


class _Submitted:
    """A submitted job, accessed through Beam's client."""

    def __init__(self, client: Any, job_id: str, console: Console) -> None:
        self.id = job_id
        self._client = client
        self._console = console
        self._seen: set[str] = set()  # messages
        self._errors: list[str] = []
        self._since: Any = None

    def wait(self) -> None:
        """Returns when the job has succeeded. Raises ConversionError for any other end."""
        state = ""
        while state not in _OVER:
            if state:
                time.sleep(POLL_SECONDS)
            now = self._client.get_job(self.id).current_state.name.removeprefix("JOB_STATE_")
            self._hear()
            if now != state:
                state = now
                say(self._console, f"dataflow: {state.lower()}{self._counts()}")
        if state == "FAILED":
            raise ConversionError(*self._failure().splitlines())
        if state != "DONE":
            raise ConversionError(
                f"the job was {state.lower()}. Run the same command again to resume."
            )

    def cancel(self) -> None:
        """Requests cancellation."""
        self._client.modify_job_state(self.id, "JOB_STATE_CANCELLED")

    def _hear(self) -> None:
        """Shows new messages and keeps errors, which are not final: a later attempt may succeed."""
        token = None
        while True:
            messages, token = self._client.list_messages(
                self.id,
                start_time=self._since,
                page_token=token,
                minimum_importance="JOB_MESSAGE_WARNING",
            )
            for message in messages:
                if message.id not in self._seen:
                    self._seen.add(message.id)
                    self._since = message.time
                    kind = message.message_importance.name.rpartition("_")[2].lower()
                    text = message.message_text
                    if kind == "error":
                        self._errors.append(text)
                    say(self._console, f"dataflow: {kind}: {text.strip().splitlines()[-1][:300]}")
            if not token:
                return

    def _failure(self) -> str:
        for _ in range(_REASON_POLLS):
            if self._errors:
                break
            time.sleep(POLL_SECONDS / 2)
            self._hear()
        reason = reason_of(self._errors)
        return f"the Dataflow job failed: {reason}{advice(reason)}"

    def _counts(self) -> str:
        """Our counters from the service, after ": "; "" if there are none yet or the service does
        not answer."""
        counts: dict[str, int] = {}
        with contextlib.suppress(Exception):  # counts must never fail a conversion
            for metric in self._client.get_job_metrics(self.id).metrics:
                context = metric.name.context
                if context.get("namespace") == "infeed" and "tentative" not in context:
                    name = metric.name.name
                    counts[name] = counts.get(name, 0) + int(metric.scalar)
        shown = [
            f"{n} {format_bytes(c) if n.endswith('_bytes') else f'{c:,}'}"
            for n, c in sorted(counts.items())
        ]
        return f": {', '.join(shown)}" if shown else ""
