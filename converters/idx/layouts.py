"""Finds the files of MNIST and its family:

    train-images-idx3-ubyte, train-labels-idx1-ubyte        the training images
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte          the test images; EMNIST has test-
    emnist-letters-train-images-idx3-ubyte ...              with the name of a dataset as prefix

each also as .gz, and with a dot instead of the hyphen before idx. Prefixes distinguish datasets in one directory."""

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from converters.idx.converter import HEADER_BYTES, LABELS_HEADER_BYTES, ImagesHeader, labels_count
from converters.raw.compressed import by_suffix, readable
from converters.raw.raw_directory import check_splits, first_few, open_raw_data
from pipeline.errors import OptionError, RawDataError, did_you_mean
from pipeline.storage.storage import Storage, join

__all__ = ["SPLITS", "RawIdx", "find_idx"]

SPLITS = ("train", "test")
_NAME = re.compile(r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<what>images|labels)[-.]idx[13]-ubyte(\.gz)?")


@dataclass(frozen=True)
class RawIdx:
    """The files to scan, and the labels of all splits, including those not chosen: 1 byte per image."""

    sources: tuple[Source, ...]
    labels: Mapping[str, bytes]


def find_idx(raw_data_dir: str, splits: Sequence[str], prefix: str | None, scratch: Scratch | None) -> RawIdx:
    """The sources of the chosen splits, or of all splits that exist. prefix: of the dataset, if there are several.

    scratch: for .gz files, None forbids writing. Raises RawDataError if files are missing or damaged, OptionError."""
    storage = open_raw_data(raw_data_dir)
    files = _files(storage, raw_data_dir, prefix)
    found = [split for split in SPLITS if (split, "images") in files]
    check_splits(raw_data_dir, splits, found)
    sources, labels = [], {}
    for split in found:
        path = join(raw_data_dir, files[split, "images"])
        header = ImagesHeader.parse(_begin(storage, path, HEADER_BYTES), path)
        if not path.endswith(".gz"):
            header.check_size(storage.stat(path).bytes, path)
        labels[split] = _labels(storage, raw_data_dir, files.get((split, "labels")), header.count, path)
        if split in splits or not splits:
            uri, stat, origin = readable(storage, path, scratch, by_suffix(path))
            header.check_size(stat.bytes, path)
            sources.append(Source(split, uri, stat, 0, stat.bytes, kind="file", origin=origin))
    return RawIdx(tuple(sources), labels)


def _files(storage: Storage, raw_data_dir: str, prefix: str | None) -> Mapping[tuple[str, str], str]:
    """The names of one dataset's files by (split, "images" or "labels")."""
    there, _ = storage.entries(raw_data_dir)
    sets: dict[str, dict[tuple[str, str], str]] = {}
    for name in there:  # sorted: an uncompressed file is before its .gz
        if match := _NAME.fullmatch(name):
            split = "train" if match["split"] == "train" else "test"
            sets.setdefault(match["prefix"].rstrip("-"), {}).setdefault((split, match["what"]), name)
    sets = {name: files for name, files in sets.items() if any(what == "images" for _, what in files)}
    if not sets:
        raise RawDataError(
            f"{raw_data_dir} has no file of images like train-images-idx3-ubyte or t10k-images-idx3-ubyte.gz. It "
            f"has: {first_few(there)}."
        )
    if prefix is not None and prefix.rstrip("-") not in sets:
        raise OptionError(f"--prefix={prefix}: there is no such dataset.{did_you_mean(prefix, sets)}")
    if prefix is None and len(sets) > 1:
        names = ", ".join(name or "'' (no prefix)" for name in sets)
        raise OptionError(f"{raw_data_dir} has several datasets: {names}. Choose one with --prefix.")
    return sets[next(iter(sets)) if prefix is None else prefix.rstrip("-")]


def _labels(storage: Storage, raw_data_dir: str, name: str | None, images: int, images_path: str) -> bytes:
    if name is None:
        wanted = images_path.rsplit("/", 1)[-1].replace("images", "labels").replace("idx3", "idx1")
        raise RawDataError(f"{raw_data_dir} has no labels for {images_path}. It needs {wanted}.")
    path = join(raw_data_dir, name)
    data = _begin(storage, path, LABELS_HEADER_BYTES + images + 1)
    count, found = labels_count(data, path), len(data) - LABELS_HEADER_BYTES
    if count != images:
        raise RawDataError(
            f"{path} has {count} labels, but {images_path} has {images} images. They do not match, or one is damaged."
        )
    if found != count:
        more = "more" if found > count else found
        raise RawDataError(f"{path} has a header for {count} labels and has {more}. It is damaged: copy it again.")
    return data[LABELS_HEADER_BYTES:]


def _begin(storage: Storage, path: str, size: int) -> bytes:
    """Up to `size` bytes from the beginning of a file, uncompressed."""
    with storage.open(path) as file:
        if not path.endswith(".gz"):
            return file.read(size)
        try:
            with gzip.open(file) as stream:
                return stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise RawDataError(f"{path} is truncated or damaged: {e}. Copy it again.") from e
