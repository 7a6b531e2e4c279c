"""Where the files of MNIST and its family are:

    train-images-idx3-ubyte, train-labels-idx1-ubyte        the training images
    t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte          the test images; EMNIST writes test-
    emnist-letters-train-images-idx3-ubyte ...              a data set's name may stand before it

each also as .gz, and with a dot for the hyphen before idx. A name before them tells several data sets apart."""

import gzip
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from converters.compressed import stat_of, to_scratch
from converters.idx import HEADER_BYTES, LABELS_HEADER_BYTES, ImagesHeader, labels_count
from pipeline.shards.errors import OptionError, RawDataError, did_you_mean
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Storage, join

__all__ = ["SPLITS", "RawIdx", "find_idx"]

SPLITS = ("train", "test")
_NAME = re.compile(r"(?P<prefix>.*?)(?P<split>train|t10k|test)-(?P<what>images|labels)[-.]idx[13]-ubyte(\.gz)?")


@dataclass(frozen=True)
class RawIdx:
    """What was found: the files to scan; of every split, converted now or not, a byte for each image's label."""

    sources: tuple[Source, ...]
    labels: Mapping[str, bytes]


def find_idx(raw_data_dir: str, splits: Sequence[str], prefix: str | None, scratch: Scratch | None) -> RawIdx:
    """The sources of the chosen splits; of all that there are if none is chosen.

    prefix: which data set, where there are several. scratch: where a .gz is uncompressed; None
    forbids writing. Raises RawDataError saying what is missing or damaged, OptionError."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist. Give the directory of the raw data.")
    files = _files(storage, raw_data_dir, prefix)
    for split in splits:
        if (split, "images") not in files:
            there = ", ".join(name for name, what in files if what == "images")
            raise RawDataError(f"{raw_data_dir} does not have the {split} split. It has: {there}.")
    sources, labels = [], {}
    for split in (split for split in SPLITS if (split, "images") in files):
        path = join(raw_data_dir, files[split, "images"])
        header = ImagesHeader.parse(_begin(storage, path, HEADER_BYTES), path)
        if not path.endswith(".gz"):
            header.check_size(storage.stat(path).bytes, path)
        labels[split] = _labels(storage, raw_data_dir, files.get((split, "labels")), header.count, path)
        if split in splits or not splits:
            readable = to_scratch(storage, path, scratch) if path.endswith(".gz") else path
            sources.append(_source(split, readable, header, path))
    return RawIdx(tuple(sources), labels)


def _files(storage: Storage, raw_data_dir: str, prefix: str | None) -> Mapping[tuple[str, str], str]:
    """(split, "images" or "labels") -> name of the file, of one data set."""
    there, _ = storage.entries(raw_data_dir)
    sets: dict[str, dict[tuple[str, str], str]] = {}
    for name in there:  # sorted: a file comes before its .gz
        if match := _NAME.fullmatch(name):
            split = "train" if match["split"] == "train" else "test"
            sets.setdefault(match["prefix"].rstrip("-"), {}).setdefault((split, match["what"]), name)
    sets = {name: files for name, files in sets.items() if any(what == "images" for _, what in files)}
    if not sets:
        some = ", ".join(list(there)[:8]) or "nothing"
        raise RawDataError(
            f"{raw_data_dir} has no file of images like train-images-idx3-ubyte or t10k-images-idx3-ubyte.gz. There "
            f"is: {some}."
        )
    if prefix is not None and prefix.rstrip("-") not in sets:
        raise OptionError(f"--prefix={prefix}: there is no such data set.{did_you_mean(prefix, sets)}")
    if prefix is None and len(sets) > 1:
        names = ", ".join(name or "'' (no prefix)" for name in sets)
        raise OptionError(f"{raw_data_dir} has several data sets: {names}. Choose one with --prefix.")
    return sets[next(iter(sets)) if prefix is None else prefix.rstrip("-")]


def _source(split: str, uri: str, header: ImagesHeader, name: str) -> Source:
    stat = stat_of(open_storage(name), name, uri)
    header.check_size(stat.bytes, name)
    return Source(split, uri, stat, 0, stat.bytes, kind="file", origin=name if name != uri else "")


def _labels(storage: Storage, raw_data_dir: str, name: str | None, images: int, images_path: str) -> bytes:
    if name is None:
        wanted = images_path.rsplit("/", 1)[-1].replace("images", "labels").replace("idx3", "idx1")
        raise RawDataError(f"{raw_data_dir} has no labels for {images_path}. It needs {wanted}.")
    path = join(raw_data_dir, name)
    data = _begin(storage, path, LABELS_HEADER_BYTES + images + 1)
    count, found = labels_count(data, path), len(data) - LABELS_HEADER_BYTES
    if count != images:
        raise RawDataError(
            f"{path} has {count} labels, {images_path} {images} images. They do not belong together, or one is damaged."
        )
    if found != count:
        more = "more" if found > count else found
        raise RawDataError(f"{path} says that it has {count} labels and has {more}. It is damaged: copy it again.")
    return data[LABELS_HEADER_BYTES:]


def _begin(storage: Storage, path: str, size: int) -> bytes:
    """Up to so many bytes of a file, or of what is compressed in it."""
    with storage.open(path) as file:
        if not path.endswith(".gz"):
            return file.read(size)
        try:
            with gzip.open(file) as stream:
                return stream.read(size)
        except (EOFError, zlib.error, gzip.BadGzipFile) as e:
            raise RawDataError(f"{path} is truncated or damaged: {e}. Copy it again.") from e
