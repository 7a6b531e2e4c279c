"""Cores that this machine does not have: what would take a core sleeps for as long instead.

Decoding and resizing in C sleep without the GIL. The parser of text is NumPy, which mostly holds the GIL: it sleeps with
the GIL held, and so delays the threads of its own process as parsing does, but no other process. Their results are
zeros. All other Python and NumPy run as they are. The parser brings all of this to worker processes, too."""

import ctypes
import functools
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from pipeline.decoding import encoded_images, resizing, row_threads
from pipeline.decoding import rows as row_decoding
from pipeline.decoding.columns import Columns
from pipeline.decoding.examples import ExampleParser
from pipeline.inputs import dataset_input
from pipeline.shards.schema import Feature

SHORTEST_SECONDS = 100e-6  # of a sleep; what a thread owes adds up until it takes as long
PR_SET_TIMERSLACK = 29  # without it a sleep takes 50 us more
_holding_the_gil = ctypes.PyDLL(None)
_slept = defaultdict[int, float](float)  # seconds, by thread
_owed = defaultdict[int, float](float)


class Lengths(NamedTuple):
    """Seconds on one core: of decoding and of resizing an image, and of parsing a record; 0: it runs as it is."""

    decode: float = 0.0
    resize: float = 0.0
    parse: float = 0.0


def emulate(lengths: Lengths, cores: int | None = None) -> None:
    """From now on, such calls of this process sleep. cores: that it seems to have; workers are told their threads."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    late_seconds = min(_seconds_of_sleep() for _ in range(20)) - SHORTEST_SECONDS

    def sleep(seconds: float, *, gil: bool = False) -> None:
        thread = threading.get_ident()
        _slept[thread] += seconds
        _owed[thread] += seconds
        if _owed[thread] >= SHORTEST_SECONDS:
            rest = max(0.0, _owed.pop(thread) - late_seconds)
            _holding_the_gil.usleep(round(1e6 * rest)) if gil else time.sleep(rest)

    def decode(_: bytes, _colours: str, *, min_height: int, min_width: int) -> np.ndarray:
        sleep(lengths.decode)
        return _zeros((min_height, min_width, 3), np.dtype(np.uint8))

    def resize(image: np.ndarray, size: tuple[int, int], **_: Any) -> np.ndarray:
        sleep(lengths.resize)
        return _zeros((*size[::-1], 3), image.dtype)

    class Parser(ExampleParser):
        def __reduce__(self) -> Any:
            features = {key.decode(): feature for key, feature in self._features.items()}
            return _parser, (lengths, features, self._wide)

        def __call__(self, payloads: Sequence[bytes]) -> Columns:
            if not lengths.parse:
                return super().__call__(payloads)
            rows = len(payloads)
            sleep(rows * lengths.parse, gil=True)
            shapes: Any = {key.decode(): each.shape for key, each in self._features.items()}
            return {key: np.zeros((rows, *shape), np.int32) for key, shape in shapes.items()}

    _replace(row_decoding, ExampleParser=Parser)
    _replace(row_threads, time=_but(time, thread_time=_thread_time))
    if lengths.decode:
        _replace(encoded_images, simplejpeg=_but(encoded_images.simplejpeg, decode_jpeg=decode))
    if lengths.resize:
        _replace(resizing, cv2=_but(resizing.cv2, resize=resize))
    if cores:
        for module in (row_threads, dataset_input):
            _replace(module, num_cores=lambda: cores)


def slept_seconds() -> float:
    """For which all threads of this process have slept, and so would have taken a core."""
    return sum(list(_slept.values()))


def _seconds_of_sleep() -> float:
    began = time.perf_counter()
    time.sleep(SHORTEST_SECONDS)
    return time.perf_counter() - began


def _thread_time() -> float:
    """Seconds that a thread has computed, as it seems."""
    return time.thread_time() + _slept[threading.get_ident()]


def _parser(lengths: Lengths, features: Mapping[str, Feature], wide: bool) -> Any:
    emulate(lengths)
    return row_decoding.ExampleParser(features, wide=wide)


def _replace(module: ModuleType, **names: Any) -> None:
    for name, value in names.items():
        setattr(module, name, value)


def _but(module: Any, **names: Any) -> SimpleNamespace:
    return SimpleNamespace(**vars(module) | names)


@functools.cache
def _zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    return np.zeros(shape, dtype)
