"""--runner=local with worker processes: if one dies, the job fails. Beam itself would wait forever
for its answer.

Imports Beam, so import it only to run a job."""

import contextlib
import os
import shlex
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator

from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.worker import sdk_worker_main
from google.protobuf.json_format import MessageToJson

from pipeline.errors import ConversionError

_REPEAT_SECONDS = 0.5
_STOP_SECONDS = 10.0
_LAST_BYTES = 4096
_COMMAND = f"exec {shlex.quote(sys.executable)} -m {sdk_worker_main.__name__}"


@contextlib.contextmanager
def watched_workers() -> Iterator[None]:
    """Raises ConversionError if the job in the block failed because a worker process died."""

    died: list[str] = []
    processes: list[subprocess.Popen[bytes]] = []

    class Watched(_WatchedHandler):
        deaths = died
        workers = processes

    WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)(Watched)
    try:
        yield
    except Exception as e:
        if not died:
            raise
        raise ConversionError(
            f"a worker process died: {died[0]} (-9 and 137: it was killed, often because memory "
            "ran out). Run the same command again to resume. Fewer --local-processes need less "
            "memory."
        ) from e
    finally:
        WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)(
            SubprocessSdkWorkerHandler
        )


class _WatchedHandler(SubprocessSdkWorkerHandler):  # pyright: ignore[reportGeneralTypeIssues]
    """Beam's handler of one worker process. If the process dies, the handler answers in its place
    and kills the other workers, because the job has failed."""

    deaths: list[str]
    workers: list[subprocess.Popen[bytes]]

    def start_worker(self) -> None:
        """Starts the process and a thread that waits for it to exit."""
        self._closing = threading.Event()
        self._late = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115
        job = {
            "WORKER_ID": self.worker_id,
            "PIPELINE_OPTIONS": MessageToJson(self.provision_info.provision_info.pipeline_options),
            "CONTROL_API_SERVICE_DESCRIPTOR": str(self.control_api_service_descriptor()),
            "LOGGING_API_SERVICE_DESCRIPTOR": str(self.logging_api_service_descriptor()),
        }
        self.worker = subprocess.Popen(
            _COMMAND, shell=True, stderr=self._stderr, env={**os.environ, **job}
        )
        self.workers.append(self.worker)
        self.worker_thread = threading.Thread(name="run_worker", target=self._run)
        self.worker_thread.start()

    def _run(self) -> None:
        with self._stderr:
            code = self.worker.wait()
            self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - _LAST_BYTES))
            last_words = self._stderr.read().decode(errors="replace").splitlines()[-1:]
        if self._closing.is_set() and (self._late or not code):
            return
        death = ": ".join([f"Worker subprocess exited with return code {code}", *last_words])
        self.deaths.append(death)
        for worker in self.workers:
            worker.kill()
        threading.Thread(target=self._connect, daemon=True).start()
        while not self._closing.is_set():  # the job may send requests until it notices
            with contextlib.suppress(RuntimeError):  # another request arrived meanwhile
                self.control_conn.abort(RuntimeError(death))
            self._closing.wait(_REPEAT_SECONDS)

    def _connect(self) -> None:
        """Discards the data for the process, because the job would wait for it to connect."""
        for _ in self.data_plane_handler.Data((), self):
            pass

    def invocation_metadata(self) -> dict[str, str]:
        """The ID of the worker of the connection."""
        return {"worker_id": self.worker_id}

    def stop_worker(self) -> None:
        """Waits for the process to exit; kills it if it takes too long."""
        try:
            self.worker.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:  # such as one that never connected
            self._late = True
            self.worker.kill()
        self.worker_thread.join()  # ends with the process, which has exited or was killed

    def close(self) -> None:
        """Stops the process."""
        self._closing.set()
        super().close()
