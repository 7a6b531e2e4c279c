"""Dataflow: what a job is told by default, and what is refused before anything is submitted. No service needed.

test_dataflow_service.py has what the service answers; tests/e2e/test_dataflow.py runs a complete job."""

import dataclasses
import re
import shlex
import sys
import tomllib
import traceback
from argparse import Namespace
from pathlib import Path

import google.auth
import pytest
from apache_beam.options.pipeline_options import (
    DebugOptions,
    GoogleCloudOptions,
    SetupOptions,
    WorkerOptions,
)
from dataflow_jobs import PLACE, job_of, options_of
from dataflow_stub import server
from fake_gcs.server import Status
from google.auth.exceptions import DefaultCredentialsError
from rich.console import Console

from beam_jobs.converter import Waiting
from beam_jobs.launch import launch
from beam_jobs.runners import dataflow_job
from beam_jobs.runners.dataflow_defaults import (
    DISK_GB,
    MACHINE_TYPE,
    MAX_WORKERS,
    set_defaults,
    threads_of,
)
from beam_jobs.runners.dataflow_errors import advice, reason_of
from converters import imagenet_to_gcs
from converters.command_line import beam_options
from pipeline.errors import ConversionError, InfeedError, OptionError, RawDataError


def defaults(*flags, **changes):
    options = options_of(*PLACE, *flags)
    set_defaults(job_of(**changes), options)
    return options


REFUSED = {
    "no project": (["--region=us-central1"], "needs --project=ID: the Google Cloud project that pays"),
    "a project's number": (["--project=123456"], "--project=123456 is the number of a project.* projects list"),
    "a project's title": (["--project=My Project"], "--project=My Project is not the ID of a project"),
    "no region": (["--project=my-project"], "needs --region=NAME, such as us-central1"),
    "a zone": (["--project=p-1", "--region=europe-west4-b"], "is a zone. Give its region: --region=europe-west4"),
    "no region's name": (["--project=p-1", "--region=Iowa"], "--region=Iowa is not a region of Google Cloud"),
    "a job's name": ([*PLACE, "--job_name=My_Job"], "--job_name=My_Job: must start with a-z, contain only a-z"),
    "local temp": ([*PLACE, "--temp_location=tmp"], "--temp_location=tmp: the workers .* share no disk"),
    "local staging": ([*PLACE, "--staging_location=/s"], "--staging_location=/s: the workers .* share no disk"),
    "no package": ([*PLACE, "--extra_package=mine/"], "--extra_package=mine/: must end in .whl, .tar.gz"),
    "package not there": ([*PLACE, "--extra_package=a.whl"], "--extra_package=a.whl: there is no such file"),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_options_that_the_service_would_refuse_are_named(flags, message):
    with pytest.raises(OptionError, match=message):
        options_of(*flags)


def test_a_local_output_is_refused():
    with pytest.raises(
        OptionError, match="--output=/data/out: the workers .* share no disk. Give gs://"
    ):
        options_of(*PLACE, output="/data/out")


def test_without_googles_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_auth_httplib2", None)
    with pytest.raises(
        InfeedError, match=r"needs google_auth_httplib2. Install it: pip install -e .*\["
    ):
        options_of(*PLACE)


@pytest.mark.parametrize("flag", ["detach", "cancel_on_interrupt"])
def test_detaching_and_cancelling_are_refused_for_local_jobs(flag):
    args = Namespace(runner="local", local_processes=1, **{flag: True})
    with pytest.raises(
        OptionError, match=f"--{flag.replace('_', '-')}: with --runner=local, a job ends with this"
    ):
        beam_options(args, [])


@pytest.mark.parametrize(
    ("machine_type", "threads"),
    [
        ("n2-standard-4", 2),
        ("n1-highmem-16", 2),
        ("c2-highcpu-8", 1),
        ("n2-custom-4-16384", 1),
        ("odd", 1),
    ],
)
def test_the_default_number_of_threads_follows_the_machine_memory(machine_type, threads):
    assert threads_of(machine_type) == threads


@pytest.mark.parametrize(
    ("gigabytes", "flags", "workers"),
    [
        (1, [], 1),
        (144, [], 12),  # ImageNet: 1,440 shards, 8 at a time in each worker, 16 times
        (100_000, [], 200),
        (144, ["--machine_type=n2-standard-8"], 6),
        (144, ["--number_of_worker_harness_threads=1"], 23),
        (1, ["--num_workers=3"], 3),  # Beam refuses more to begin with than at most
        (144, ["--max_num_workers=7"], 7),
        (144, ["--autoscaling_algorithm=NONE"], None),
    ],
)
def test_the_default_number_of_workers_is_bounded_by_the_number_of_shards(
    gigabytes, flags, workers
):
    assert defaults(*flags, gigabytes=gigabytes).view_as(WorkerOptions).max_num_workers == workers


def test_a_requested_number_of_shards_bounds_the_default_number_of_workers():
    options = options_of(*PLACE)
    set_defaults(job_of(num_shards={"train": 320}), options)
    assert options.view_as(WorkerOptions).max_num_workers == 3


def test_an_explicit_beam_flag_overrides_each_default():
    flags = (
        "--job_name=mine --temp_location=gs://t/x --label=infeed=mine --disk_size_gb=99 --save_main_session "
        "--machine_type=n1-highmem-8 --number_of_worker_harness_threads=5 --experiments=shuffle_mode=appliance"
    )
    options = defaults(*shlex.split(flags))
    google, workers = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    assert google.job_name == "mine"
    assert google.temp_location == google.staging_location == "gs://t/x"
    assert google.labels[-1] == "infeed=mine"  # Beam takes the last of a name
    assert (workers.machine_type, workers.disk_size_gb) == ("n1-highmem-8", 99)
    debug = options.view_as(DebugOptions)
    assert debug.number_of_worker_harness_threads == 5
    assert debug.lookup_experiment("shuffle_mode") == "appliance"
    assert options.view_as(SetupOptions).save_main_session is True


def test_names_and_labels_have_only_characters_that_the_service_takes():
    converter = type("Named", (), {"name": "Grüne Vögel_v2/All"})()
    options = options_of(*PLACE)
    set_defaults(dataclasses.replace(job_of(), converter=converter), options)
    google = options.view_as(GoogleCloudOptions)
    assert google.job_name == "infeed-gr-ne-v-gel-v2-all-20010909-014640-01234567"
    assert "infeed-dataset=gr-ne-v-gel-v2-all" in google.labels
    converter.name = "long" * 30
    google.job_name = google.labels = None
    set_defaults(dataclasses.replace(job_of(), converter=converter), options)
    assert len(google.job_name) == 63
    assert max(len(label.partition("=")[2]) for label in google.labels) == 63


ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def service():
    with server.start() as started:
        yield started


def submit(job, *flags, waiting=Waiting(detach=True)):  # noqa: B008
    # no second of pip in each
    flags = [*PLACE, "--experiments=disable_logging_submission_environment", *flags]
    return launch(job, options_of(*flags, output=job.output_dir), Console(), waiting)


def test_raw_data_on_a_disk_are_refused_before_the_bucket_or_the_service_is_asked(service):
    service.order()
    with pytest.raises(
        OptionError,
        match=r"/data/train.tar is on this machine, where no worker .*gcloud storage cp",
    ):
        submit(job_of(uri="/data/train.tar", output="gs://not-there/out"), *service.flags)
    assert service.requests("GET") == []


def test_tables_of_boxes_that_workers_read_must_be_in_a_bucket_too(bucket):
    job = job_of(output=f"{bucket}/out")
    job = dataclasses.replace(
        job, converter=dataclasses.replace(job.converter, box_tables=("boxes.csv",))
    )
    with pytest.raises(OptionError, match="boxes.csv is on this machine"):
        submit(job)


def test_missing_credentials_are_reported_before_the_service_is_called(bucket, monkeypatch):
    def none():
        raise DefaultCredentialsError("none here")

    monkeypatch.setattr(google.auth, "default", none)
    with pytest.raises(
        InfeedError, match="no credentials for Google Cloud. Run `gcloud auth application-default"
    ):
        submit(job_of(output=f"{bucket}/out"))


OFF = "Dataflow API has not been used in project 12 before or it is disabled. Enable it by visiting ..."


ANSWERS = {
    "API": (403, OFF, "API is disabled in project my-project. Enable it: `gcloud services enable dataflow.googleapis.com"),
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
}  # fmt: skip


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
    with pytest.raises(
        ConversionError, match="a quota of project my-project in us-central1 is exhausted"
    ):
        submit(job_of(output=f"{bucket}/out"), *service.flags)


@pytest.mark.timeout(60)  # Beam would try for ten minutes
def test_a_staging_bucket_that_is_not_there_is_named_at_once(bucket, service):
    service.order()
    with pytest.raises(
        ConversionError, match=r"cannot create gs://nowhere/s/infeed-\S+: bucket 'nowhere' does"
    ):
        submit(job_of(output=f"{bucket}/out"), *service.flags, "--staging_location=gs://nowhere/s")
    assert service.requests("POST") == []


@pytest.mark.timeout(60)
def test_a_staging_bucket_without_read_permission_is_reported_immediately(
    bucket, service, gcs_server
):
    service.order()
    gcs_server.fail(r"GET /storage/v1/b/[^/]+\?", Status(403), times=None)
    with pytest.raises(
        ConversionError, match=r"get bucket 'bucket-\w+', .*\(403\).* Storage Legacy Bucket Reader"
    ):
        submit(job_of(output=f"{bucket}/out"), *service.flags)
    assert service.requests("POST") == []


ERROR = {"id": "m2", "time": "2026-01-02T03:04:05Z", "messageImportance": "JOB_MESSAGE_ERROR"}


ERROR_LINE = "".join(
    traceback.format_exception_only(RawDataError("a.tar is gone. Copy it again."))
).strip()


TRACEBACK = f"Traceback (most recent call last):\n  ...\n{ERROR_LINE}"


ENDS = {
    "our error": ("FAILED", [TRACEBACK, "a work item was attempted 4 times"], "^a.tar is gone. Copy it again.$"),
    "quota": ("FAILED", ["Quota 'CPUS' exceeded"], "the Dataflow job failed: Quota 'CPUS' exceeded Use fewer workers"),
    "no reason": ("FAILED", [], "the Dataflow job failed: the service gives no reason"),
    "cancelled": ("CANCELLED", [], "the job was cancelled. Run the same command again to resume"),
    "lost": ("DONE", [], "the commit of train never ran: it lost data. No manifest was written"),
}  # fmt: skip


@pytest.mark.parametrize(("state", "said", "message"), ENDS.values(), ids=ENDS.keys())
def test_an_end_without_a_complete_split_is_an_error_that_says_why(
    bucket, service, monkeypatch, state, said, message
):
    monkeypatch.setattr(dataflow_job, "POLL_SECONDS", 0.01)
    messages = [ERROR | {"id": f"m{i}", "messageText": text} for i, text in enumerate(said)]
    service.order(states=["JOB_STATE_RUNNING", f"JOB_STATE_{state}"], messages=messages)
    with pytest.raises(ConversionError, match=message):
        submit(job_of(output=f"{bucket}/out"), *service.flags, waiting=Waiting())


def test_a_traceback_is_preferred_as_the_reason_and_reported_with_its_remedy():
    missing = "Traceback ...\nModuleNotFoundError: No module named 'birds'"
    assert (
        reason_of(["started slowly", missing, "A work item was attempted 4 times without success"])
        == missing
    )
    assert "add it with --extra_package" in advice(missing)
    assert "PyPI" in advice("Failed to install packages: failed to install workflow")
    assert "Dataflow Worker" in advice("403 GET https://storage: forbidden")
    assert advice("something else") == ""


def test_the_page_of_runners_states_the_defaults_and_commands_that_exist():
    page = (ROOT / "docs/runners.md").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    install = re.search(r"FROM apache/beam_python.*\nRUN pip install --no-cache-dir (.*)", page)
    assert shlex.split(install[1]) == project["dependencies"]
    for default in (
        f"`{MACHINE_TYPE}`, {DISK_GB} GB",
        f"more than {MAX_WORKERS}",
        "12 for ImageNet",
    ):
        assert default in page
    command = re.search("^infeed convert imagenet (--runner=dataflow .*)", page, re.MULTILINE)
    args, rest = imagenet_to_gcs._parser().parse_known_args(shlex.split(command[1]))
    assert args.runner == "dataflow"
    beam_options(args, [*rest, f"--project={args.project}"])
