"""Loaded by every Python process of a conversion under test: kills the process group at one placed moment.

KILL_AT is "<moment>:<file name pattern>". Moments of the publication of a file: before it, half of its bytes written,
after it is there; and `created`, after a claim."""

import contextlib
import fnmatch
import os
import signal
import sys

moment, _, pattern = os.environ.get("KILL_AT", "").partition(":")

if moment:
    sys.path.insert(0, os.environ["KILL_ROOT"])
    from pipeline.shards.local import LocalStorage

    def kill(at, path):
        if at == moment and fnmatch.fnmatch(os.path.basename(path), pattern):  # noqa: PTH119
            os.killpg(0, signal.SIGKILL)

    class HalfSink:
        def __init__(self, sink, path):
            self.sink, self.path = sink, path

        def write(self, data):
            self.sink.write(data[: len(data) // 2])
            self.sink.flush()
            kill("half", self.path)
            self.sink.write(data[len(data) // 2 :])

    publish, create = LocalStorage.publish, LocalStorage.create

    @contextlib.contextmanager
    def killing_publish(self, path):
        kill("before", path)
        with publish(self, path) as sink:
            yield HalfSink(sink, path)
        kill("after", path)

    def killing_create(self, path, data):
        created = create(self, path, data)
        kill("created", path)
        return created

    LocalStorage.publish, LocalStorage.create = killing_publish, killing_create
