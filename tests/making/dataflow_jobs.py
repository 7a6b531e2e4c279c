"""Jobs for Dataflow, and their options, without a service."""

from argparse import Namespace

from beam_jobs.converter import ConversionJob, Source
from converters.command_line import beam_options
from converters.imagenet.converter import ImagenetConverter
from pipeline.storage.storage import Stat

PLACE = ["--project=my-project", "--region=us-central1"]


def options_of(*flags, output="gs://bucket/out", runner="dataflow"):
    return beam_options(Namespace(runner=runner, local_processes=1, output=output), flags)


def job_of(gigabytes=1, uri="gs://bucket/raw/train.tar", output="gs://bucket/out", **changes):
    size = int(gigabytes * 10**9)
    converter = ImagenetConverter(("n00000001",))
    source = Source("train", uri, Stat(size), 0, size)
    return ConversionJob(
        converter, (source,), output, run_id="0123456789abcdef", started=1e9, **changes
    )
