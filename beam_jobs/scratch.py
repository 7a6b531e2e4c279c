"""Uncompresses raw files once, to temporary files that can then be read by ranges; and removes
temporary files.

A record in a .tar.gz, or in any other compressed stream, cannot be found without reading everything
before it. The temporary file is in <output>/_scratch until the commit, or a command that fails,
removes it. Only kill -9 leaves it, and the next run uses it if it is complete. A failing command
keeps files that it found there, because another command may be reading them."""

import contextlib
import hashlib
import os
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import BinaryIO, Self

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.rows.references import encoded
from pipeline.errors import OptionError, RawDataError, StorageError
from pipeline.shards.frames import Compression
from pipeline.sizes import format_bytes
from pipeline.sources.sequential_file import inflated
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import Storage, in_parallel, is_compressed, join, uncompressed

_PIECE_BYTES = 1 << 20
# gzip ends with crc32 and size, zlib with adler32: a repaired file may be as long as the old one
_TAIL_BYTES = 8
# text compresses to about a tenth; gzip's limit is a thousandth
_RATIO = 100
_LEAST_BYTES = 1 << 30


def remove_scratch(job: ConversionJob, unfinished: str, is_ours: Callable[[str], object]) -> None:
    """Removes the temporary files with names that are ours. Raises StorageError.

    unfinished: a glob pattern of names; what killed workers left of such files is removed, too."""
    directory = job.path("_scratch")
    job.output.sweep(directory, [unfinished])
    names = filter(is_ours, job.output.list(directory))
    in_parallel(job.output.delete, [join(directory, name) for name in names])


class _Terminated(BaseException):
    """SIGTERM, as an exception that leaves the block."""


class Scratch:
    """The temporary files of one conversion. An error, Ctrl-C or SIGTERM in the block removes them.

    max_bytes: limit for each uncompressed file; None: 100 times its compressed size, but at least 1
    GiB."""

    def __init__(self, output_dir: str, max_bytes: int | None = None):
        self.output_dir = output_dir
        self.max_bytes = max_bytes
        self._paths = set[str]()
        self._new = set[str]()
        self._is_kept = False
        # other threads that are uncompressing stop with it, too
        self._failure: BaseException | None = None
        self._handlers = dict[signal.Signals, signal.Handlers]()

    @property
    def paths(self) -> tuple[str, ...]:
        """The existing files, sorted."""
        return tuple(sorted(self._paths))

    def keep(self) -> None:
        """Keeps the files for a job that runs elsewhere. Its commit removes them."""
        self._is_kept = True

    def limit(self, compressed_bytes: int) -> int:
        """The limit for the uncompressed size of a file with this compressed size."""
        return self.max_bytes or max(_LEAST_BYTES, _RATIO * compressed_bytes)

    def uncompressed(self, raw: Storage, uri: str, compression: Compression | None) -> str:
        """The path of the uncompressed file. compression: None for the one that its name states.
        Raises RawDataError if the compressed file is damaged or too large."""
        output = open_storage(self.output_dir)
        stat = raw.stat(uri)
        tail = min(stat.bytes, _TAIL_BYTES)
        end = b"".join(raw.read_ranges([(uri, stat.bytes - tail, tail)]))
        version = encoded(f"{uri}\0{stat}\0") + end
        source = hashlib.blake2b(version, digest_size=8).hexdigest()
        directory = join(self.output_dir, "_scratch")
        path = join(directory, source)
        output.sweep(directory, {source})
        self._paths.add(path)
        if output.exists(path):  # it appears only when complete
            return path
        self._new.add(path)
        try:
            with output.publish(path) as sink:
                for piece in self._bounded(_pieces(raw, uri, compression), uri, stat.bytes):
                    sink.write(piece)
                if raw.stat(uri) != stat:
                    raise RawDataError(
                        f"{uri} changed while it was being uncompressed. Run the same command "
                        "again."
                    )
        except BaseException as e:
            self._failure = self._failure or e
            raise
        return path

    def _bounded(self, pieces: Iterator[bytes], uri: str, compressed_bytes: int) -> Iterator[bytes]:
        written = 0
        limit = self.limit(compressed_bytes)
        for piece in pieces:
            written += len(piece)
            if self._failure:
                raise self._failure
            if written > limit:
                raise RawDataError(
                    f"{uri} has {format_bytes(compressed_bytes)} and uncompresses to more than "
                    f"{format_bytes(limit)}: it may be a decompression bomb. If it really contains "
                    "more, allow it: --max-uncompressed-bytes=SIZE."
                )
            yield piece

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
            for number, handler in usual.items():
                if signal.getsignal(number) == handler:
                    signal.signal(number, self._interrupted)
                    self._handlers[number] = handler
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if error and not self._is_kept:
            for path in self._new:
                with contextlib.suppress(StorageError):  # the first error matters
                    open_storage(path).delete(path)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if isinstance(self._failure, _Terminated):
            os.kill(os.getpid(), signal.SIGTERM)
        if isinstance(self._failure, KeyboardInterrupt):  # Beam replaces it by another exception
            raise self._failure

    def _interrupted(self, number: int, _frame: FrameType | None) -> None:
        # nothing to remove: ends the process, as by default
        if number == signal.SIGTERM and not self._paths:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        self._failure = KeyboardInterrupt() if number == signal.SIGINT else _Terminated()
        raise self._failure


def _pieces(raw: Storage, uri: str, compression: Compression | None) -> Iterator[bytes]:
    if compression:
        with raw.open(uri) as file:
            yield from read_compressed(file, compression, uri)
    else:
        with uncompressed(raw, uri) as file:
            yield from iter(partial(file.read, _PIECE_BYTES), b"")


def read_compressed(file: BinaryIO, compression: Compression, name: str) -> Iterator[bytes]:
    """Yields the uncompressed content of a file in pieces. Raises RawDataError naming the file if
    it is damaged."""
    try:
        yield from inflated(iter(lambda: file.read(_PIECE_BYTES), b""), compression)
    except zlib.error as e:
        raise RawDataError(f"{name} is truncated or damaged: {e}. Copy it again.") from e
    except StorageError:
        raise
    except OSError as e:
        raise StorageError(f"cannot read {name}: {e.strerror or e}.") from e


def readable(
    path: str, scratch: Scratch | None, split: str = "", compression: Compression | None = None
) -> Source:
    """The raw file itself as a unit to scan, or its temporary uncompressed copy.

    A copy has the stamp of the raw file, because each run writes a new copy of the same raw data.
    scratch: None forbids writing. split: "" for a file of several splits. compression: None for the
    one that the name states, if any. Raises OptionError if it would have to write, and
    RawDataError."""
    storage = open_storage(path)
    if not compression and path.lower().endswith((".gz", ".tgz")):
        compression = "gzip"
    if not (compression or is_compressed(path)):
        stat = storage.stat(path)
        return Source(split, path, stat, bytes=stat.bytes)
    if scratch is None:
        raise OptionError(
            f"{path} has to be uncompressed before it can be scanned, and --dry-run writes nothing."
        )
    uri = scratch.uncompressed(storage, path, compression)
    stat = open_storage(uri).stat(uri)
    origin = storage.stat(path)
    crc32c = origin.crc32c if stat.crc32c is None else stat.crc32c
    stat = stat._replace(stamp=origin.stamp, crc32c=crc32c)
    return Source(split, uri, stat, bytes=stat.bytes, origin=path)
