"""Traces of training, in the layout that TensorBoard's profile plugin and XProf read: of profile_steps, and on request.

Of profile_steps, only host 0 traces itself and its devices: all hosts run the same program.

Requests are those of TensorBoard's "capture profile" and of TensorFlow's client. jax.profiler.start_server would answer
them on all interfaces, and write each trace to a path that the client chooses. The server here speaks the same protocol
(tsl/profiler/protobuf/profiler_service.proto), but returns the trace, and the client saves it."""

import shlex
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from pipeline.errors import OptionError, StorageError
from pipeline.logs import logger
from pipeline.shards.example import varint
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, write_file
from trainer.config import TrainerConfig

TO_LOOK_AT_IT = "in a new environment: pip install tensorboard tensorboard-plugin-profile && tensorboard --logdir"

LONGEST_CAPTURE_SECONDS = 60.0  # a trace is held in memory

log = logger("trainer")


class Profile:
    """Traces the part of config.profile_steps within `start`..`end`, the steps of this run, into <workdir>/profile.

    stops: the steps after which `at` must be called, while no step is running. Use as a context manager: leaving ends a
    trace that the run did not reach the end of. Until then, config.profiler_port answers requests."""

    def __init__(self, config: TrainerConfig, start: int, end: int | None) -> None:
        wanted = config.profile_range or range(0)
        stop = wanted.stop if end is None else min(end, wanted.stop)
        within = range(max(start, wanted.start), stop)
        self.stops = frozenset({within.start, within.stop} if within else ())
        self._within, self._wanted, self._directory = within, config.profile_steps, join(config.workdir, "profile")
        self._mine = jax.process_index() == 0
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._port, self._host, self._server = config.profiler_port, config.profiler_host, None
        self._left = threading.Event()
        if wanted and not within:
            to = "the end of the input" if end is None else end
            log.warning("profile_steps=%s: this run trains only steps %d to %s", config.profile_steps, start + 1, to)

    def at(self, step: int) -> None:
        """Begins or ends the trace if this is the step to do so."""
        if step not in self.stops or not self._mine:
            return
        if step == self._within.start:
            self._begin()
        else:
            self._end()

    def _begin(self) -> None:
        self._temporary = tempfile.TemporaryDirectory()  # jax writes to disks only
        jax.profiler.start_trace(self._temporary.name)

    def _end(self) -> None:
        temporary, self._temporary = self._temporary, None
        if temporary is None:
            return
        jax.profiler.stop_trace()
        with temporary as directory:
            try:
                self._upload(Path(directory))
            except StorageError as error:
                log.warning("the profile is lost: %s", error)  # not worth ending the training
                return
        look = f"{TO_LOOK_AT_IT} {shlex.quote(self._directory)}"
        log.info("the profile of steps %s is in %s. To look at it, %s", self._wanted, self._directory, look)

    def _upload(self, directory: Path) -> None:
        storage = open_storage(self._directory)
        for file in (path for path in directory.rglob("*") if path.is_file()):
            write_file(storage, join(self._directory, file.relative_to(directory).as_posix()), file.read_bytes())

    def _serve(self, address: str) -> None:
        import grpc  # of tensorboard's

        methods = {"Profile": grpc.unary_unary_rpc_method_handler(self._captured)}
        handlers = [grpc.method_handlers_generic_handler("tensorflow.ProfilerService", methods)]
        self._server = grpc.server(ThreadPoolExecutor(1), handlers, options=[("grpc.so_reuseport", 0)])
        try:
            self._server.add_insecure_port(address)
        except RuntimeError as e:
            raise OptionError(f"profiler_port: cannot listen on {address}; is the port in use? Give another.") from e
        self._server.start()
        log.info("captures of a profile are answered on %s", address)

    def _captured(self, request: bytes, _: Any) -> bytes:
        """A ProfileResponse, whose tool_data has the trace. Of the ProfileRequest only field 1 counts, duration_ms."""
        from google.protobuf.wrappers_pb2 import UInt64Value

        with tempfile.TemporaryDirectory() as directory:
            with jax.profiler.trace(directory):
                self._left.wait(min(UInt64Value.FromString(request).value / 1000, LONGEST_CAPTURE_SECONDS))
            (trace,) = (path.read_bytes() for path in Path(directory).rglob("*.xplane.pb"))
        tool = b"\x0a\x09xplane.pb\x12" + varint(len(trace)) + trace
        return b"\x32" + varint(len(tool)) + tool

    def __enter__(self) -> "Profile":
        if self._port is not None:
            self._serve(f"{self._host}:{self._port + jax.process_index()}")
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._left.set()
        if self._server is not None:
            self._server.stop(None)
        self._end()
