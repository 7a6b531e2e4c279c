"""Finds the images of an image folder:

    folders by split      <split>/<class>/**; the split is one of SPLIT_NAMES, in any case
    one set of folders    <class>/**; a fraction of the images is for validation
    archives              <split>.zip (.tar, .tar.gz) with <class>/**; or one archive of either

The command line decides which, because a class may be called train. Ignores what is_hidden
names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import filterfalse
from unicodedata import normalize

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch
from beam_jobs.split.summary import empty_classes
from converters.images.image_archives import (
    KNOWN_SUFFIXES,
    Archive,
    ClassFolders,
    archive_stem,
    open_archive,
)
from converters.raw.files import first_few, is_hidden, open_raw_data
from converters.raw.splits import SPLITS, HeldOut, chosen
from converters.table.layouts import hint_of_tables
from pipeline.errors import RawDataError
from pipeline.sources.named_splits import SPLIT_NAMES
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import find_file, join


@dataclass(frozen=True)
class RawFolders:
    """The units to scan, and all classes, sorted, including those of splits not chosen. notices:
    for the user."""

    sources: Sequence[Source]
    classes: tuple[str, ...]
    notices: Sequence[str]


_Folders = Mapping[str, ClassFolders]  # by split


def find_folders(
    raw_data_dir: str,
    splits: Sequence[str],
    held_out: HeldOut | None,
    scratch: Scratch | None = None,
) -> RawFolders:
    """The sources of the chosen splits, or of all splits that exist.

    held_out: None for folders by split. scratch: for a .tar.gz, None forbids writing.
    Raises RawDataError if something is missing, OptionError."""
    open_raw_data(raw_data_dir)
    raw = _Raw(raw_data_dir, scratch)
    folders, notices = _by_split(raw) if held_out is None else ({"train": _one_set(raw)}, ())
    for folder in folders.values():
        _check_classes(folder)
    if held_out is not None:
        folders = dict.fromkeys(held_out.splits, folders["train"])
    by_path = {folder.path: folder for folder in folders.values()}
    # in archives; in folders, the scan finds them
    empty = [empty_classes(path, each.empty) for path, each in by_path.items() if each.empty]
    chosen_splits = chosen(raw_data_dir, splits, folders)
    classes = tuple(sorted({name for folder in folders.values() for name in folder.classes}))
    _check_normalized(raw_data_dir, classes)
    return RawFolders(
        [source for split in chosen_splits for source in folders[split].sources(split)],
        classes,
        (*notices, *_of_tables(raw, folders), *empty),
    )


@dataclass(frozen=True)
class _Raw:
    """The raw data: a directory or an archive."""

    path: str
    scratch: Scratch | None

    @cached_property
    def is_archive(self) -> bool:
        return self.path.endswith(KNOWN_SUFFIXES) and bool(
            find_file(open_storage(self.path), self.path)
        )

    @cached_property
    def folder(self) -> ClassFolders:
        return ClassFolders(self.path, (), ()) if self.is_archive else _folder(self.path)

    def only_archive(self) -> Archive | None:
        """The path itself if it is an archive, or the only archive in the directory."""
        if self.is_archive:
            return open_archive(self.path, self.scratch)
        packed = [name for name in self.folder.files if name.endswith(KNOWN_SUFFIXES)]
        return self.open(packed[0]) if len(packed) == 1 else None

    def open(self, name: str) -> Archive:
        return open_archive(join(self.path, name), self.scratch)


def _by_split(raw: _Raw) -> tuple[_Folders, Sequence[str]]:
    names = raw.folder.classes
    files = raw.folder.files
    folders = {
        split: _folder(join(raw.path, name))
        for split, name in _named_by_split(raw.path, names, "folders").items()
    }
    stems = {stem: name for name in files if (stem := archive_stem(name))}
    notices = []
    for split, stem in _named_by_split(raw.path, stems, "archives").items():
        if split in folders:  # probably unpacked from the archive
            notices.append(
                f"{join(raw.path, stems[stem])} is not read: {folders[split].path} is the {split} "
                "split."
            )
        else:
            folders[split] = raw.open(stems[stem]).class_folders(until=())
    if not folders and (archive := raw.only_archive()):
        top = archive.class_folders(until=SPLIT_NAMES)
        folders = {
            split: archive.class_folders_at((*top.place, name))
            for split, name in _named_by_split(top.path, top.classes, "folders").items()
        }
        names = top.classes
        files = top.files
    if not folders:
        remedy = (
            "If these are the class folders, give --validation-fraction (0 for train only)."
            if names
            else "Put the images of each class into a folder with the name of the class."
        )
        raise RawDataError(
            f"{raw.path} has no folder of a split ({', '.join(SPLIT_NAMES)}), and no archive of "
            f"one. It has: {first_few([*names, *files])}. {remedy} "
            f"{hint_of_tables(raw.path, raw.folder.files)}".rstrip()
        )
    return {split: folders[split] for split in SPLITS if split in folders}, notices


def _named_by_split(path: str, names: Iterable[str], what: str) -> dict[str, str]:
    places: dict[str, str] = {}
    for name in names:
        split = SPLIT_NAMES.get(name.lower())
        if split and split in places:
            raise RawDataError(
                f"{path} has two {what} for the {split} split. Rename or remove one of them."
            )
        if split:
            places[split] = name
    return places


def _one_set(raw: _Raw) -> ClassFolders:
    archive = None if raw.folder.classes else raw.only_archive()
    folder = archive.class_folders(until=SPLIT_NAMES) if archive else raw.folder
    if folder.classes and {name.lower() for name in folder.classes} <= set(SPLIT_NAMES):
        raise RawDataError(
            f"{folder.path} has folders by split ({', '.join(folder.classes)}). Leave out "
            "--validation-fraction."
        )
    return folder


def _folder(path: str) -> ClassFolders:
    files, folders = open_storage(path).entries(path)
    return ClassFolders(
        path, tuple(filterfalse(is_hidden, folders)), tuple(filterfalse(is_hidden, files))
    )


def _check_classes(folder: ClassFolders) -> None:
    """Raises RawDataError without classes, or if a name does not suit: it becomes text in records
    and a line in a file of names."""
    if not folder.classes:
        hint = "" if folder.archive else hint_of_tables(folder.path, folder.files)
        raise RawDataError(
            f"{folder.path} has no class folders in it. It has: {first_few(folder.files)}. "
            f"{hint}".rstrip()
        )
    for name in folder.classes:
        try:
            fits = name.encode().decode().splitlines() == [name]
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise RawDataError(
                f"{folder.path} has a class folder {name!r}: its name must be UTF-8 text on one "
                "line. Rename it."
            )


def _check_normalized(path: str, classes: Iterable[str]) -> None:
    """Raises RawDataError for two names that look the same: they would be two classes."""
    names: dict[str, str] = {}
    for name in classes:
        other = names.setdefault(normalize("NFC", name), name)
        if other != name:
            raise RawDataError(
                f"{path} has class folders {other!a} and {name!a}: their names differ "
                "only in Unicode normalization (NFC, NFD). Rename one of them, or move its files "
                "to the other."
            )


def _of_tables(raw: _Raw, folders: _Folders) -> Iterator[str]:
    """Notices of tables in the directory or among class folders, where labels may be kept."""
    places = {raw.path: raw.folder.files}
    places |= {folder.path: folder.files for folder in folders.values() if not folder.archive}
    for path, files in places.items():
        if hint := hint_of_tables(path, files):
            yield f"classes are the names of folders. {hint}"
