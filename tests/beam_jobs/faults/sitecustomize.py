"""Loaded by every Python process of a conversion under test: kills the process group at one placed moment.

KILL_AT is "<moment>:<name>[@<bytes>]". Moments of the publication of a file, by the pattern of its name: before it,
half of a write done that goes beyond so many bytes, after it is there; and `created`, after a claim. `scan`: when the
first rows of the source of that tag are found; `assign`: when the bucket of that number is begun. PIECE_BYTES makes
resumable uploads of small files. KILL_ONE names a file that is not there yet: the first process to come by makes it
and dies, alone; its group and the processes after it live, unless KILL_EACH is set. `import`: when that module is imported, in
processes whose command contains KILL_IN. STOP_ONE likewise, but that process waits. SCANNED names a file for the tags of sources scanned."""

import contextlib
import fnmatch
import os
import signal
import sys
import time
from pathlib import Path

moment, _, rest = os.environ.get("KILL_AT", "").partition(":")
pattern, _, at_bytes = rest.partition("@")
in_bucket = "PIECE_BYTES" in os.environ


def kill(at, name):
    if at == moment and fnmatch.fnmatch(os.path.basename(name), pattern):  # noqa: PTH119
        if waits := os.environ.get("STOP_ONE"):
            Path(waits).touch()
            time.sleep(60)
        if "KILL_ONE" not in os.environ:
            os.killpg(0, signal.SIGKILL)
        with contextlib.suppress(FileExistsError):
            Path(os.environ["KILL_ONE"]).touch(exist_ok="KILL_EACH" in os.environ)
            os.kill(os.getpid(), signal.SIGKILL)


class HalfSink:
    def __init__(self, sink, path):
        self.sink, self.path, self.num_bytes = sink, path, 0

    def write(self, data):
        self.num_bytes += len(data)
        if moment == "half" and self.num_bytes > int(at_bytes or 0):
            self.sink.write(data[: len(data) // 2])
            if hasattr(self.sink, "flush"):
                self.sink.flush()
            kill("half", self.path)
            data = data[len(data) // 2 :]
        self.sink.write(data)


def kill_in_storage(storage):
    """Before, within and after each way in which a file appears."""
    publish, create, update = storage.publish, storage.create, storage.update

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

    def killing_update(self, path, change):
        def changed(there):
            data = change(there)
            kill("before", path)
            return data

        update(self, path, changed)
        kill("after", path)

    storage.publish, storage.create, storage.update = (
        killing_publish,
        killing_create,
        killing_update,
    )


def kill_in_scan(converter):
    scan = converter.scan

    def killing_scan(self, storage, source):
        batches = scan(self, storage, source)
        yield next(batches)
        kill("scan", source.tag)
        yield from batches

    converter.scan = killing_scan


def note_scans(converter, path):
    scan = converter.scan

    def noting_scan(self, storage, source):
        with path.open("a") as file:
            file.write(f"{source.tag or source.split}\n")
        return scan(self, storage, source)

    converter.scan = noting_scan


def kill_in_assign(plan):
    assign = plan.assign

    def killing_assign(self, bucket, pieces):
        kill("assign", str(bucket))
        return assign(self, bucket, pieces)

    plan.assign = killing_assign


class KillingImport:
    """A finder of modules that finds none."""

    @staticmethod
    def find_spec(name, *_):
        if any(os.environ["KILL_IN"] in word for word in sys.orig_argv):
            kill("import", name)


if moment == "import":
    sys.meta_path.insert(0, KillingImport)
elif "KILL_ROOT" in os.environ:
    sys.path.insert(0, os.environ["KILL_ROOT"])
    if in_bucket:
        from pipeline.storage import gcs, gcs_upload

        gcs_upload.PIECE_BYTES = int(os.environ["PIECE_BYTES"])
        kill_in_storage(gcs.GcsStorage)
    if "SCANNED" in os.environ:
        from converters.imagenet.converter import ImagenetConverter

        note_scans(ImagenetConverter, Path(os.environ["SCANNED"]))
    if moment == "scan":
        from converters.imagenet.converter import ImagenetConverter

        kill_in_scan(ImagenetConverter)
    elif moment == "assign":
        from beam_jobs.split.plan import SplitPlan

        kill_in_assign(SplitPlan)
    elif moment and not in_bucket:
        from pipeline.storage.local import LocalStorage

        kill_in_storage(LocalStorage)
