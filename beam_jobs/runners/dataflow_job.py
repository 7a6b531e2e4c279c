"""Submits a job to Dataflow and follows it to its end: link, states, warnings and counts.

The commit is part of the graph, so a job needs no launcher to complete: --detach and Ctrl-C lose
nothing."""

import contextlib
import time
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.runners.dataflow_errors import advice, as_ours, reason_of
from pipeline.console.console import Console, say
from pipeline.console.interrupts import Exit
from pipeline.errors import ConversionError
from pipeline.sizes import format_bytes
from pipeline.storage.storage import join

POLL_SECONDS = 10.0
_REASON_POLLS = 6  # the reason for a failure may appear half a minute after the failure
_OVER = {"DONE", "FAILED", "CANCELLED", "UPDATED", "DRAINED"}


def run(job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
    """Submits a job and waits for its end. Returns False without waiting after --detach or writing
    a template.

    Raises OptionError or ConversionError if the job is refused, fails or is cancelled;
    SystemExit on Ctrl-C."""
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
        raise SystemExit(Exit.INTERRUPTED) from None
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
