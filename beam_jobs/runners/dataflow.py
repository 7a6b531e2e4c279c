"""--runner=dataflow: Google's service, whose workers install our wheel.

Imports Beam only inside functions."""

import logging
import tempfile
from argparse import Namespace
from pathlib import Path
from typing import Any

from beam_jobs.converter import ConversionJob, Waiting
from beam_jobs.runners import dataflow_job
from beam_jobs.runners.dataflow_defaults import set_defaults
from beam_jobs.runners.dataflow_errors import as_ours, check_bucket, check_credentials
from beam_jobs.runners.dataflow_options import check_options, check_places
from beam_jobs.runners.runner import Runner
from beam_jobs.runners.wheel import build_wheel
from pipeline.console.console import Console
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join


class Dataflow(Runner):
    """Submits jobs, which need no launcher to complete."""

    name = "dataflow"
    beam_class = "apache_beam.runners.dataflow.dataflow_runner.DataflowRunner"
    help = "Google Cloud, with --project and --region (docs/runners.md)"
    extra = "gcp"
    leaves = True

    def check(self, args: Namespace, options: Any) -> None:
        """See Runner."""
        check_options(args, options)

    def check_job(self, job: ConversionJob) -> None:
        """See Runner."""
        check_places(job)

    def run(self, job: ConversionJob, options: Any, console: Console, waiting: Waiting) -> bool:
        """See Runner. Checks with the service first.

        Raises OptionError, StorageError or InfeedError if the service would refuse the job; nothing
        is submitted then."""
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
                return dataflow_job.run(job, options, console, waiting)
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
