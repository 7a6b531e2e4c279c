"""Finds text files and tables of texts, and cuts them into sources.

files by split   train/**, validation/** (or val), test/**; or train*.txt, validation-1.jsonl, ...
one set          all files, also in subdirectories; a fraction of the documents is for validation

A source is a group of small files, a range of a large file that can be cut, or a large file that cannot."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from beam_jobs.converter import Source, group_of
from beam_jobs.references import File
from converters.raw.splits import by_split, chosen, first_few, open_raw_data
from converters.table.rows import TABLE_SUFFIXES
from converters.text.documents import GZIP, TEXT_SUFFIX, DocumentFormat, bare_name, can_be_cut
from pipeline.errors import RawDataError
from pipeline.storage.schemes import is_remote
from pipeline.storage.storage import Stat, Storage, join

SLICE_BYTES = 16 * 10**6  # of raw data; packing takes about twenty times as much memory
_MOST_PATHS = 100  # to one directory
SUFFIXES = (TEXT_SUFFIX, *TABLE_SUFFIXES)
_SPLIT = re.compile(r"(train|validation|val|test)[-_./].*", re.DOTALL)


@dataclass(frozen=True)
class RawTexts:
    """The sources to scan; paths of all tables, including those of splits not chosen; files that are not read."""

    sources: tuple[Source, ...]
    tables: tuple[str, ...]
    others: tuple[str, ...]


def find_texts(
    raw_data_dir: str, splits: Sequence[str], validation_fraction: float | None, reading: DocumentFormat
) -> RawTexts:
    """The sources of the chosen splits, or of all splits that exist. validation_fraction: None for files by split.

    Raises RawDataError if something is missing, OptionError."""
    storage = open_raw_data(raw_data_dir)
    files = dict(_files(storage, raw_data_dir))
    texts = {name: stat for name, stat in files.items() if bare_name(name).endswith(SUFFIXES)}
    # An empty table has no documents; an empty text file is one that cannot be used.
    texts = {name: stat for name, stat in texts.items() if stat.bytes or name.endswith(TEXT_SUFFIX)}
    if not texts:
        raise RawDataError(
            f"{raw_data_dir} has no text: no file ends in {', '.join(SUFFIXES)}, with or without {GZIP}. It has: "
            f"{first_few(files)}."
        )
    wanted = "files of a split, such as train/a.txt or validation-1.jsonl"
    names = by_split(raw_data_dir, list(texts), validation_fraction, name=_SPLIT, wanted=wanted)
    read = set(itertools.chain.from_iterable(names.values()))
    sources = (
        source
        for split in chosen(raw_data_dir, splits, names)
        for source in _sources(split, raw_data_dir, {name: texts[name] for name in names[split]}, reading)
    )
    tables = (join(raw_data_dir, name) for name in sorted(read) if bare_name(name).endswith(TABLE_SUFFIXES))
    return RawTexts(tuple(sources), tuple(tables), tuple(name for name in files if name not in read))


def _files(storage: Storage, directory: str) -> Iterator[tuple[str, Stat]]:
    """All files below the directory by relative path, sorted by folder; without hidden ones.

    Raises RawDataError for a directory with too many paths: two links in each of 27 directories make 134 million."""
    pending, found = [""], Counter[Path]()
    while pending:
        place = pending.pop()
        path = join(directory, place) if place else directory
        if not is_remote(path):
            real = Path(path).resolve()
            if real in {parent.resolve() for parent in Path(path).absolute().parents}:  # a link to a directory above
                continue
            found[real] += 1
            if found[real] > _MOST_PATHS:
                links = (str(each) for each in reversed((Path(path), *Path(path).parents)) if each.is_symlink())
                raise RawDataError(
                    f"{real} is found by more than {_MOST_PATHS} paths, through symbolic links such as "
                    f"{first_few(links)}. Remove the links, or give a directory without them."
                )
        files, folders = storage.entries(path)
        yield from ((f"{place}{name}", stat) for name, stat in files.items() if not name.startswith("."))
        pending += [f"{place}{name}/" for name in reversed(folders) if not name.startswith(".")]


def _sources(split: str, raw_data_dir: str, files: Mapping[str, Stat], reading: DocumentFormat) -> Iterator[Source]:
    """tag: the path of the first file in the raw data."""
    group: list[tuple[str, File]] = []
    size = 0
    for name, stat in files.items():
        if stat.bytes > SLICE_BYTES:
            yield from _slices(split, name, File(join(raw_data_dir, name), stat), reading)
            continue
        if size + stat.bytes > SLICE_BYTES:
            yield _group(split, group)
            group, size = [], 0
        group.append((name, File(join(raw_data_dir, name), stat)))
        size += stat.bytes
    if group:
        yield _group(split, group)


def _slices(split: str, name: str, file: File, reading: DocumentFormat) -> Iterator[Source]:
    total = file.stat.bytes
    step = SLICE_BYTES if can_be_cut(name, reading) else total
    for begin in range(0, total, step):
        size = min(step, total - begin)
        yield Source(split, file.uri, file.stat, begin, size, tag=name, kind="file")


def _group(split: str, named: Sequence[tuple[str, File]]) -> Source:
    members = tuple(file for _, file in named)
    size = sum(file.stat.bytes for file in members)
    tag, group = named[0][0], group_of(members)
    return Source(split, members[0].uri, Stat(size), bytes=size, tag=tag, kind="group", group=group)
