"""Refuses options and raw data with which a Dataflow job would fail, before anything is submitted.

Imports Beam only inside functions."""

import importlib.util
import re
from argparse import Namespace
from pathlib import Path
from typing import Any

from beam_jobs.converter import ConversionJob
from pipeline.errors import InfeedError, OptionError
from pipeline.packages import how_to_install
from pipeline.storage.schemes import is_remote

_JOB_NAME = re.compile("[a-z]([-a-z0-9]*[a-z0-9])?")
_PROJECT = re.compile("[a-z][-a-z0-9:.]+[a-z0-9]")
_REGION = re.compile("[a-z]+-[a-z]+[0-9]+")
_PACKAGES = (".whl", ".tar.gz", ".tar", ".zip")


def check_options(args: Namespace, options: Any) -> None:
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
            lack = "have no access to s3" if path.startswith("s3:") else "share no disk"
            raise OptionError(
                f"--{flag}={path}: the workers of --runner=dataflow {lack}. Give gs://bucket/dir."
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


def check_places(job: ConversionJob) -> None:
    """Raises OptionError for raw data that workers cannot read."""
    for path in (*(source.uri for source in job.sources), *job.converter.worker_files):
        if not path.startswith("gs://"):
            where = "in another cloud" if is_remote(path) else "on this machine"
            raise OptionError(
                f"{path} is {where}, where no worker of --runner=dataflow can read it. Copy the "
                "raw data to a bucket (gcloud storage cp -r) and give gs://bucket/dir."
            )
