"""Finds text files and tables of texts, and cuts them into sources.

files by split   train/**, validation/** (or val), test/**; or train*.txt, validation-1.jsonl, ...
one set          all files, also in subdirectories; a fraction of the documents is for validation

A source is a group of small files, a range of a large file that can be cut, or a large file that cannot."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from beam_jobs.converter import Source, group_of
from beam_jobs.references import File
from converters.raw.raw_directory import check_splits, first_few, open_raw_data
from converters.raw.validation_share import check_fraction
from converters.table.rows import TABLE_SUFFIXES
from converters.text.documents import GZIP, TEXT_SUFFIX, Reading, bare_name, can_be_cut
from pipeline.errors import RawDataError
from pipeline.storage.schemes import is_remote
from pipeline.storage.storage import Stat, Storage, join

__all__ = ["SPLITS", "SUFFIXES", "RawTexts", "find_texts"]

SPLITS = ("train", "validation", "test")
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
    raw_data_dir: str, splits: Sequence[str], validation_fraction: float | None, reading: Reading
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
    if validation_fraction is None:
        by_split = _by_split(raw_data_dir, texts)
    else:
        check_fraction(validation_fraction)
        by_split = {"train": list(texts), **({"validation": list(texts)} if validation_fraction else {})}
    check_splits(raw_data_dir, splits, by_split)
    chosen = [split for split in SPLITS if split in by_split and (split in splits or not splits)]
    read = {name for names in by_split.values() for name in names}
    sources = (
        replace(source, split=split)
        for split in chosen
        for source in _sources(raw_data_dir, {name: texts[name] for name in by_split[split]}, reading)
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


def _by_split(raw_data_dir: str, names: Iterable[str]) -> Mapping[str, Sequence[str]]:
    found: dict[str, list[str]] = {}
    for name in names:
        if match := _SPLIT.fullmatch(name):
            found.setdefault("validation" if match[1] == "val" else match[1], []).append(name)
    if not found:
        raise RawDataError(
            f"{raw_data_dir} has no files of a split, such as train/a.txt or validation-1.jsonl. It has: "
            f"{first_few(names)}. If these are not split yet, give --validation_fraction (0 for train only)."
        )
    return found


def _sources(raw_data_dir: str, files: Mapping[str, Stat], reading: Reading) -> Iterator[Source]:
    """Sources without a split. tag: the path of the first file in the raw data."""
    group: list[tuple[str, File]] = []
    size = 0
    for name, stat in files.items():
        if stat.bytes > SLICE_BYTES:
            yield from _slices(name, File(join(raw_data_dir, name), stat), reading)
            continue
        if size + stat.bytes > SLICE_BYTES:
            yield _group(group)
            group, size = [], 0
        group.append((name, File(join(raw_data_dir, name), stat)))
        size += stat.bytes
    if group:
        yield _group(group)


def _slices(name: str, file: File, reading: Reading) -> Iterator[Source]:
    total = file.stat.bytes
    step = SLICE_BYTES if can_be_cut(name, reading) else total
    for begin in range(0, total, step):
        yield Source("", file.uri, file.stat, begin, min(step, total - begin), name, "file")


def _group(named: Sequence[tuple[str, File]]) -> Source:
    members = tuple(file for _, file in named)
    size = sum(file.stat.bytes for file in members)
    return Source("", members[0].uri, Stat(size), 0, size, named[0][0], "group", group=group_of(members))
