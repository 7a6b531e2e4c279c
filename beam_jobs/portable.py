"""--runner=portable: a job service at an address. Its options are checked before anything is read."""

import socket
from argparse import Namespace
from typing import Any

from pipeline.errors import ConversionError, OptionError

__all__ = ["check_options"]

_CONNECT_SECONDS = 10.0
_PAGE = "beam_jobs/RUNNERS.md has both commands."


def check_options(args: Namespace, options: Any) -> None:
    """Raises OptionError if the job service or its workers are not given, ConversionError if the service is down."""
    from apache_beam.options.pipeline_options import PortableOptions

    portable = options.view_as(PortableOptions)
    endpoint = portable.job_endpoint
    if not endpoint:
        raise OptionError(
            f"--runner={args.runner} needs --job_endpoint=host:port, the address of a job service. To start one here: "
            f"python -m beam_jobs.loopback job_service --port=8099. {_PAGE}"
        )
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"--job_endpoint={endpoint}: must be host:port, such as localhost:8099.")
    if not portable.environment_type:  # Beam's default is its own image, which has none of our packages
        raise OptionError(
            f"--runner={args.runner} needs --environment_type: EXTERNAL with --environment_config=host:port, a worker "
            f"pool in an environment that has infeed; or DOCKER with --environment_config=IMAGE that has it. {_PAGE}"
        )
    if portable.environment_type == "EXTERNAL" and not (portable.environment_config or portable.environment_options):
        raise OptionError(f"--environment_type=EXTERNAL needs --environment_config=host:port, a worker pool. {_PAGE}")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as e:
        raise ConversionError(
            f"no job service answers at --job_endpoint={endpoint}: {e}. Start it, or correct it."
        ) from e
