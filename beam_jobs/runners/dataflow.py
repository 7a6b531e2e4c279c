"""--runner=dataflow: sets the options of a job, and refuses impossible ones before anything is
submitted.

Beam's own flags override each default. Imports Beam only inside functions."""

import contextlib
import importlib.util
import logging
import math
import re
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from beam_jobs.converter import ConversionJob
from beam_jobs.runners.dataflow_job import as_ours, check_bucket, check_credentials
from beam_jobs.runners.wheel import build_wheel
from pipeline.errors import InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import join

MACHINE_TYPE = "n2-standard-4"
# the service's default of 25 is tight with Beam's image; the shuffle is small and not on workers
DISK_GB = 30
MAX_WORKERS = 200  # 800 vCPUs: more may need a higher quota, and the user's decision

_SHARDS_PER_THREAD = 16  # a worker takes minutes to start, and seconds to write a shard

_JOB_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_PROJECT = re.compile("[a-z][-a-z0-9:.]+[a-z0-9]")
_REGION = re.compile("[a-z]+-[a-z]+[0-9]+")
_PACKAGES = (".whl", ".tar.gz", ".tar", ".zip")


def check(args: Namespace, options: Any) -> None:
    """Raises OptionError for options that the service would refuse, or with which its workers would
    fail."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions, SetupOptions

    modules = ("google.cloud.dataflow", "google_auth_httplib2", "apitools")
    missing = [name for name in modules if not importlib.util.find_spec(name)]
    if missing:
        raise InfeedError(
            f"--runner=dataflow needs {', '.join(missing)}. Install it: {how_to_install('gcp')}."
        )
    google = options.view_as(GoogleCloudOptions)
    _check_project(google.project)
    _check_region(google.region)
    if google.job_name and not _JOB_NAME.fullmatch(google.job_name):
        raise OptionError(
            f"--job_name={google.job_name}: must start with a-z, contain only a-z, 0-9 and -, and "
            "not end in -."
        )
    locations = {name: getattr(google, name) for name in ("temp_location", "staging_location")}
    for flag, path in {"output": args.output, **locations}.items():
        if path and not re.match("gs://[^/]", path):
            raise OptionError(
                f"--{flag}={path}: the workers of --runner=dataflow share no disk. Give "
                "gs://bucket/dir."
            )
    for package in options.view_as(SetupOptions).extra_packages or ():
        _check_package(package)


def _check_project(project: str | None) -> None:
    if not project:
        raise OptionError(
            "--runner=dataflow needs --project=ID: the Google Cloud project that pays for the "
            "workers."
        )
    if not _PROJECT.fullmatch(project):
        what = "the number of a project" if project.isdecimal() else "not the ID of a project"
        raise OptionError(
            f"--project={project} is {what}. `gcloud projects list` shows IDs, such as "
            "my-project-123."
        )


def _check_region(region: str | None) -> None:
    if not region:
        raise OptionError(
            "--runner=dataflow needs --region=NAME, such as us-central1; ideally that of the "
            "buckets."
        )
    region_of_zone = region.rpartition("-")[0]
    if _REGION.fullmatch(region_of_zone):
        raise OptionError(
            f"--region={region} is a zone. Give its region: --region={region_of_zone}."
        )
    if not _REGION.fullmatch(region):
        raise OptionError(
            f"--region={region} is not a region of Google Cloud. An example is us-central1."
        )


def _check_package(package: str) -> None:
    if not package.endswith(_PACKAGES):
        raise OptionError(
            f"--extra_package={package}: must end in {', '.join(_PACKAGES)}. Build one: pip wheel ."
        )
    if not is_remote(package) and not Path(package).is_file():
        raise OptionError(
            f"--extra_package={package}: there is no such file. Build it: pip wheel --no-deps ."
        )


def check_job(job: ConversionJob) -> None:
    """Raises OptionError for raw data that workers cannot read."""
    for path in (*(source.uri for source in job.sources), *job.converter.worker_files):
        if not is_remote(path):
            raise OptionError(
                f"{path} is on this machine, where no worker of --runner=dataflow can read it. "
                "Copy the raw data to a bucket (gcloud storage cp -r) and give gs://bucket/dir."
            )


@contextlib.contextmanager
def prepared(job: ConversionJob, options: Any) -> Iterator[None]:
    """Sets defaults and adds our wheel for the block, which submits the job. Checks with the
    service first.

    Raises OptionError, StorageError or InfeedError if the service would refuse the job; nothing is
    submitted then."""
    from apache_beam.options.pipeline_options import SetupOptions

    set_defaults(job, options)
    setup = options.view_as(SetupOptions)
    # Beam logs each error with its traceback on every attempt; we report it once
    logging.disable(logging.CRITICAL)
    try:
        with tempfile.TemporaryDirectory(prefix="infeed-") as directory:
            setup.extra_packages = [
                str(build_wheel(Path(directory))),
                *(setup.extra_packages or ()),
            ]
            _check_service(job, options)
            yield
    finally:
        logging.disable(logging.NOTSET)


def _check_service(job: ConversionJob, options: Any) -> None:
    """Checks credentials, permissions, API, project, region and staging bucket: one call, one small
    object, 1 s.

    Beam itself retries a forbidden bucket for ten minutes."""
    from apache_beam.options.pipeline_options import GoogleCloudOptions

    google = options.view_as(GoogleCloudOptions)
    if not google.no_auth:
        check_credentials()
    from apache_beam.runners.dataflow.internal import apiclient
    from google.cloud.dataflow import ListJobsRequest

    with as_ours(google.project, google.region):
        client: Any = apiclient.DataflowApplicationClient(options)
        jobs = ListJobsRequest(project_id=google.project, location=google.region, page_size=1)
        client._jobs_client.list_jobs(request=jobs)
    path = join(google.staging_location, f"{google.job_name}.txt")
    open_storage(path).create(path, f"{job.output_dir}\n".encode())
    check_bucket(client._storage_client, google.staging_location)


def set_defaults(job: ConversionJob, options: Any) -> None:
    """Sets name, labels, locations and workers of the job, unless flags have."""
    from apache_beam.options.pipeline_options import (
        DebugOptions,
        GoogleCloudOptions,
        SetupOptions,
        WorkerOptions,
    )

    google = options.view_as(GoogleCloudOptions)
    debug = options.view_as(DebugOptions)
    bucket = "/".join(job.output_dir.split("/")[:3])
    # each is the default of the other
    temp = google.temp_location or google.staging_location
    staging = google.staging_location or google.temp_location
    google.temp_location = temp or f"{bucket}/infeed-dataflow/temp"
    google.staging_location = staging or f"{bucket}/infeed-dataflow/staging"
    google.job_name = google.job_name or _job_name(job)
    ours = {
        "infeed": "conversion",
        "infeed-dataset": _plain(job.converter.name),
        "infeed-run": _plain(job.run_id),
    }
    google.labels = [
        *(f"{name}={value}" for name, value in ours.items() if value),
        *(google.labels or ()),
    ]
    _set_workers(job, options.view_as(WorkerOptions), debug)
    if debug.lookup_experiment("shuffle_mode") is None:
        debug.add_experiment("shuffle_mode=service")
    setup = options.view_as(SetupOptions)
    if setup.save_main_session is None:
        setup.save_main_session = False  # Beam's default pickles everything in __main__


def _set_workers(job: ConversionJob, workers: Any, debug: Any) -> None:
    workers.machine_type = workers.machine_type or MACHINE_TYPE
    if workers.disk_size_gb is None:
        workers.disk_size_gb = DISK_GB
    if debug.number_of_worker_harness_threads is None:
        debug.number_of_worker_harness_threads = threads_of(workers.machine_type)
    if workers.max_num_workers is None and workers.autoscaling_algorithm != "NONE":
        at_once = _vcpus(workers.machine_type) * debug.number_of_worker_harness_threads
        enough = math.ceil(_shards(job) / (at_once * _SHARDS_PER_THREAD))
        workers.max_num_workers = max(min(enough, MAX_WORKERS), workers.num_workers or 1)


def _shards(job: ConversionJob) -> int:
    """An estimate of the number of shards, which only the scan determines."""
    shards = 0
    for split in job.splits:
        size = sum(source.guessed_bytes for source in job.sources_of(split))
        shards += job.num_shards.get(split) or max(1, round(size / job.target_shard_bytes))
    return shards


def threads_of(machine_type: str) -> int:
    """Shards that a Python process, one per vCPU, writes in parallel.

    A thread has 160 MiB in flight (64 MiB read ahead, parts of an upload or a scan), at most a
    quarter of the memory of a vCPU: 1 GiB in highcpu, 4 or 8 GiB in the others. A third thread
    would wait: one keeps 64 requests in flight, the entire connection pool, and the other works
    while it ends a shard."""
    return 2 if "-standard-" in machine_type or "-highmem-" in machine_type else 1


def _vcpus(machine_type: str) -> int:
    # n2-standard-4; n2-custom-4-16384 ends with its memory
    match = re.search(r"-(\d+)(-\d+)?$", machine_type)
    return int(match[1]) if match else 1


def _job_name(job: ConversionJob) -> str:
    """The dataset, time and run, because names of running jobs must be unique. At most 63
    characters."""
    at = time.strftime("%Y%m%d-%H%M%S", time.gmtime(job.started))
    return f"infeed-{_plain(job.converter.name)[:31].strip('-')}-{at}-{job.run_id[:8]}".rstrip("-")


def _plain(text: str) -> str:
    """The text, reduced to the characters of labels and names: a-z, 0-9 and -."""
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")[:63]
