"""The options of a Dataflow job: name, labels, locations and workers. Beam's own flags override
each.

Imports Beam only inside functions."""

import math
import re
import time
from typing import Any

from beam_jobs.converter import ConversionJob

MACHINE_TYPE = "n2-standard-4"
# the service's default of 25 is tight with Beam's image; the shuffle is small and not on workers
DISK_GB = 30
MAX_WORKERS = 200  # 800 vCPUs: more may need a higher quota, and the user's decision

_SHARDS_PER_THREAD = 16  # a worker takes minutes to start, and seconds to write a shard


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

    A thread has 168 MiB in flight (72 MiB read ahead, parts of an upload or a scan), at most a
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
