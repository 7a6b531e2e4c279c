"""Dataflow: what a job is told by default, and what is refused before anything is submitted. No service needed.

test_dataflow_service.py has what the service answers; tests/e2e/test_dataflow.py runs a complete job."""

import dataclasses
import sys
from argparse import Namespace

import pytest
from apache_beam.options.pipeline_options import DebugOptions, GoogleCloudOptions, SetupOptions, WorkerOptions
from dataflow_jobs import PLACE, job_of, options_of

from beam_jobs.dataflow import set_defaults, threads_of
from converters.command_line import beam_options
from pipeline.errors import InfeedError, OptionError


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
}


@pytest.mark.parametrize(("flags", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_options_that_the_service_would_refuse_are_named(flags, message):
    with pytest.raises(OptionError, match=message):
        options_of(*flags)


def test_a_local_output_is_refused():
    with pytest.raises(OptionError, match="--output=/data/out: the workers .* share no disk. Give gs://"):
        options_of(*PLACE, output="/data/out")


def test_without_googles_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_auth_httplib2", None)
    with pytest.raises(InfeedError, match=r"needs google_auth_httplib2. Install it: pip install -e .*\["):
        options_of(*PLACE)


@pytest.mark.parametrize("flag", ["detach", "cancel_on_interrupt"])
def test_detaching_and_cancelling_are_refused_for_local_jobs(flag):
    args = Namespace(runner="local", local_processes=1, **{flag: True})
    with pytest.raises(OptionError, match=f"--{flag.replace('_', '-')}: with --runner=local, a job ends with this"):
        beam_options(args, [])


@pytest.mark.parametrize(
    ("machine_type", "threads"),
    [("n2-standard-4", 2), ("n1-highmem-16", 2), ("c2-highcpu-8", 1), ("n2-custom-4-16384", 1), ("odd", 1)],
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
def test_the_default_number_of_workers_is_bounded_by_the_number_of_shards(gigabytes, flags, workers):
    assert defaults(*flags, gigabytes=gigabytes).view_as(WorkerOptions).max_num_workers == workers


def test_a_requested_number_of_shards_bounds_the_default_number_of_workers():
    options = options_of(*PLACE)
    set_defaults(job_of(num_shards={"train": 320}), options)
    assert options.view_as(WorkerOptions).max_num_workers == 3


def test_an_explicit_beam_flag_overrides_each_default():
    options = defaults(
        *["--job_name=mine", "--temp_location=gs://t/x", "--label=infeed=mine", "--machine_type=n1-highmem-8"],
        *["--disk_size_gb=99", "--number_of_worker_harness_threads=5", "--experiments=shuffle_mode=appliance"],
        "--save_main_session",
    )
    google, workers = options.view_as(GoogleCloudOptions), options.view_as(WorkerOptions)
    assert (google.job_name, google.temp_location, google.staging_location) == ("mine", "gs://t/x", "gs://t/x")
    assert google.labels[-1] == "infeed=mine"  # Beam takes the last of a name
    assert (workers.machine_type, workers.disk_size_gb) == ("n1-highmem-8", 99)
    debug = options.view_as(DebugOptions)
    assert debug.number_of_worker_harness_threads == 5
    assert [each for each in debug.experiments if "shuffle_mode" in each] == ["shuffle_mode=appliance"]
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
