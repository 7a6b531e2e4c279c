"""--runner=local with worker processes: if one dies, the job fails. Beam itself would wait forever
for its answer.

Imports Beam, so import it only to run a job."""

import contextlib
import threading
from collections.abc import Iterator

from apache_beam.portability import python_urns
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.portability.local_job_service import SubprocessSdkWorker

from pipeline.errors import ConversionError

_REPEAT_SECONDS = 0.5


@contextlib.contextmanager
def watched_workers() -> Iterator[None]:
    """Raises ConversionError if the job in the block failed because a worker process died."""
    died: list[str] = []

    class Watched(_WatchedHandler):
        deaths = died

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
    """Beam's handler of one worker process. If the process dies, the handler answers in its
    place."""

    deaths: list[str]

    def start_worker(self) -> None:
        """Starts the process and a thread that waits for it to exit."""
        self._closing = threading.Event()
        self.worker = SubprocessSdkWorker(
            self._worker_command_line, self.control_address, self.provision_info, self.worker_id
        )
        self.worker_thread = threading.Thread(name="run_worker", target=self._run)
        self.worker_thread.start()

    def _run(self) -> None:
        try:
            self.worker.run()
        except RuntimeError as death:
            self.deaths.append(str(death))
            while not self._closing.is_set():  # the job may send requests until it notices
                with contextlib.suppress(RuntimeError):  # another request arrived meanwhile
                    self.control_conn.abort(death)
                self._closing.wait(_REPEAT_SECONDS)

    def close(self) -> None:
        """Stops the process."""
        self._closing.set()
        super().close()
