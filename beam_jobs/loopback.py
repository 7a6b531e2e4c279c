"""python -m beam_jobs.loopback worker_pool --service_port=50000: Beam's services, for this machine
only.

Beam's servers do not authenticate clients and listen on every interface, with no option to change
that."""

import contextlib
import runpy
import sys
from collections.abc import Iterator

_SERVICES = {
    "worker_pool": "apache_beam.runners.worker.worker_pool_main",
    "job_service": "apache_beam.runners.portability.local_job_service_main",
}


@contextlib.contextmanager
def on_loopback() -> Iterator[None]:
    """gRPC servers created in the block listen on loopback instead of on every interface."""
    import grpc

    original = grpc.server

    def server(*args, **kwargs):
        new = original(*args, **kwargs)
        bind = new.add_insecure_port
        new.add_insecure_port = lambda address: bind(address.replace("[::]:", "localhost:"))
        return new

    grpc.server = server
    try:
        yield
    finally:
        grpc.server = original


if __name__ == "__main__":
    if sys.argv[1:2] not in [[name] for name in _SERVICES]:
        sys.exit(f"error: give one of {', '.join(_SERVICES)}, followed by its options.")
    with on_loopback():
        runpy.run_module(_SERVICES[sys.argv.pop(1)], run_name="__main__", alter_sys=True)
