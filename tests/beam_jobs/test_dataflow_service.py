"""Dataflow: what we, the bucket and the service refuse before a job is submitted, and how the end of a job is told."""

import dataclasses
import re
import shlex
import tomllib
import traceback
from pathlib import Path

import google.auth
import pytest
from dataflow_jobs import PLACE, job_of, options_of
from dataflow_stub import server
from fake_gcs.server import Status
from google.auth.exceptions import DefaultCredentialsError
from rich.console import Console

from beam_jobs import dataflow_job
from beam_jobs.conversion_job import Waiting
from beam_jobs.dataflow import DISK_GB, MACHINE_TYPE, MAX_WORKERS
from beam_jobs.dataflow_errors import advice, reason_of
from beam_jobs.launch import launch
from converters import imagenet_to_gcs
from converters.command_line import beam_options
from pipeline.errors import ConversionError, InfeedError, OptionError, RawDataError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service():
    with server.start() as started:
        yield started


def submit(job, *flags, waiting=Waiting(detach=True)):  # noqa: B008
    flags = [*PLACE, "--experiments=disable_logging_submission_environment", *flags]  # no second of pip in each
    return launch(job, options_of(*flags, output=job.output_dir), Console(), waiting)


def test_raw_data_on_a_disk_are_refused_before_the_bucket_or_the_service_is_asked(service):
    service.order()
    with pytest.raises(OptionError, match=r"/data/train.tar is on this machine, where no worker .*gcloud storage cp"):
        submit(job_of(uri="/data/train.tar", output="gs://not-there/out"), *service.flags)
    assert service.requests("GET") == []


def test_tables_of_boxes_that_workers_read_must_be_in_a_bucket_too(bucket):
    job = job_of(output=f"{bucket}/out")
    job = dataclasses.replace(job, converter=dataclasses.replace(job.converter, box_tables=("boxes.csv",)))
    with pytest.raises(OptionError, match="boxes.csv is on this machine"):
        submit(job)


def test_missing_credentials_are_reported_before_the_service_is_called(bucket, monkeypatch):
    def none():
        raise DefaultCredentialsError("none here")

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(InfeedError, match="no credentials for Google Cloud. Run `gcloud auth application-default"):
        submit(job_of(output=f"{bucket}/out"))


OFF = "Dataflow API has not been used in project 12 before or it is disabled. Enable it by visiting ..."


ANSWERS = {
    "API": (
        403,
        OFF,
        "API is disabled in project my-project. Enable it: `gcloud services enable dataflow.googleapis.com",
    ),
    "permission": (403, "caller does not have permission", "no permission in project my-project.* Dataflow Developer"),
    "quota": (429, "too many jobs", "a quota of project my-project in us-central1 is exhausted. Use fewer workers"),
    "quota in 400": (400, "(a1b2): Quota exceeded: CPUS", "a quota of project my-project in us-central1 is exhausted"),
    "region": (400, "Unknown location us-central1", "has no region us-central1. `gcloud compute regions list`"),
    "token": (401, "bad token", "no valid credentials .*Run `gcloud auth application-default login`"),
    "other": (
        400,
        "(a1b2): The workflow\n is odd",
        r"Dataflow refused the job. The service answered \(400\): .*workflow is odd",
    ),
}


@pytest.mark.parametrize(("status", "said", "message"), ANSWERS.values(), ids=ANSWERS.keys())
def test_a_refusal_is_one_line_and_nothing_is_staged_or_submitted(
    bucket, service, gcs_server, status, said, message, caplog
):
    service.order(refusals={"GET": [status, said]})
    with pytest.raises(ConversionError, match=message) as raised:
        submit(job_of(output=f"{bucket}/out"), *service.flags)
    assert "\n" not in str(raised.value)
    assert service.requests("POST") == []
    assert gcs_server.objects(bucket.removeprefix("gs://")) == {}
    assert caplog.records == []


def test_a_refused_job_is_reported_with_the_exhausted_quota(bucket, service):
    service.order(refusals={"POST": [400, "Quota exceeded"]})
    with pytest.raises(ConversionError, match="a quota of project my-project in us-central1 is exhausted"):
        submit(job_of(output=f"{bucket}/out"), *service.flags)


@pytest.mark.timeout(60)  # Beam would try for ten minutes
def test_a_staging_bucket_that_is_not_there_is_named_at_once(bucket, service):
    service.order()
    with pytest.raises(ConversionError, match=r"cannot create gs://nowhere/s/infeed-\S+: bucket 'nowhere' does"):
        submit(job_of(output=f"{bucket}/out"), *service.flags, "--staging_location=gs://nowhere/s")
    assert service.requests("POST") == []


@pytest.mark.timeout(60)
def test_a_staging_bucket_without_read_permission_is_reported_immediately(bucket, service, gcs_server):
    service.order()
    gcs_server.fail(r"GET /storage/v1/b/[^/]+\?", Status(403), times=None)
    with pytest.raises(ConversionError, match=r"get bucket 'bucket-\w+', .*\(403\).* Storage Legacy Bucket Reader"):
        submit(job_of(output=f"{bucket}/out"), *service.flags)
    assert service.requests("POST") == []


ERROR = {"id": "m2", "time": "2026-01-02T03:04:05Z", "messageImportance": "JOB_MESSAGE_ERROR"}


ERROR_LINE = "".join(traceback.format_exception_only(RawDataError("a.tar is gone. Copy it again."))).strip()


TRACEBACK = f"Traceback (most recent call last):\n  ...\n{ERROR_LINE}"


ENDS = {
    "our error": ("FAILED", [TRACEBACK, "a work item was attempted 4 times"], "^a.tar is gone. Copy it again.$"),
    "quota": ("FAILED", ["Quota 'CPUS' exceeded"], "the Dataflow job failed: Quota 'CPUS' exceeded Use fewer workers"),
    "no reason": ("FAILED", [], "the Dataflow job failed: the service gives no reason"),
    "cancelled": ("CANCELLED", [], "the job was cancelled. Run the same command again to resume"),
    "lost": ("DONE", [], "the commit of train never ran: it lost data. No manifest was written"),
}


@pytest.mark.parametrize(("state", "said", "message"), ENDS.values(), ids=ENDS.keys())
def test_an_end_without_a_complete_split_is_an_error_that_says_why(bucket, service, monkeypatch, state, said, message):
    monkeypatch.setattr(dataflow_job, "POLL_SECONDS", 0.01)
    messages = [ERROR | {"id": f"m{i}", "messageText": text} for i, text in enumerate(said)]
    service.order(states=["JOB_STATE_RUNNING", f"JOB_STATE_{state}"], messages=messages)
    with pytest.raises(ConversionError, match=message):
        submit(job_of(output=f"{bucket}/out"), *service.flags, waiting=Waiting())


def test_a_traceback_is_preferred_as_the_reason_and_reported_with_its_remedy():
    missing = "Traceback ...\nModuleNotFoundError: No module named 'birds'"
    assert reason_of(["started slowly", missing, "A work item was attempted 4 times without success"]) == missing
    assert "add it with --extra_package" in advice(missing)
    assert "PyPI" in advice("Failed to install packages: failed to install workflow")
    assert "Dataflow Worker" in advice("403 GET https://storage: forbidden")
    assert advice("something else") == ""


def test_the_dataflow_page_states_the_defaults_and_commands_that_exist():
    page = (ROOT / "beam_jobs/DATAFLOW.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = re.search(r"FROM apache/beam_python.*\nRUN pip install --no-cache-dir (.*)", page)
    assert shlex.split(install[1]) == project["dependencies"]
    for default in (f"`{MACHINE_TYPE}`, {DISK_GB} GB", f"more than {MAX_WORKERS}", "12 for ImageNet"):
        assert default in page
    command = re.search("^python -m converters.imagenet_to_gcs (.*)", page, re.MULTILINE)
    args, rest = imagenet_to_gcs._parser().parse_known_args(shlex.split(command[1]))
    assert args.runner == "dataflow"
    beam_options(args, [*rest, f"--project={args.project}"])
