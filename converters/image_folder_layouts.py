"""Where the images of an image folder are:

    folders by split      <split>/<class>/*, the split being train, validation (or val) or test
    one set of folders    <class>/*, of which a fraction is for validation

The command says which of the two: a class may be called train. What is hidden (.name) is not looked at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from beam_jobs.converter import Source
from pipeline.shards.errors import OptionError, RawDataError
from pipeline.shards.schemes import open_storage
from pipeline.shards.storage import Stat, Storage, join

__all__ = ["SPLITS", "RawFolders", "find_folders"]

SPLITS = ("train", "validation", "test")
_FOLDER_NAMES = {"train": "train", "validation": "validation", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class RawFolders:
    """The units to scan, and all classes, sorted: also those of splits that are not converted now."""

    sources: tuple[Source, ...]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class _Folder:
    """A folder of class folders."""

    path: str
    classes: tuple[str, ...]
    stray: bool  # whether there are files beside the class folders

    def sources(self, split: str) -> Iterator[Source]:
        if self.stray:
            yield Source(split, self.path, Stat(0), kind="folder")
        for name in self.classes:
            yield Source(split, join(self.path, name), Stat(0), tag=name, kind="folder")


def find_folders(raw_data_dir: str, splits: Sequence[str], validation_fraction: float | None) -> RawFolders:
    """The sources of the chosen splits; of all that there are if none is chosen.

    validation_fraction: None for folders by split. Raises RawDataError saying what is missing, OptionError."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(f"--raw_data_dir={raw_data_dir} does not exist.")
    if validation_fraction is None:
        folders = _by_split(storage, raw_data_dir)
    else:
        folders = _one_set(storage, raw_data_dir, validation_fraction)
    for split in splits:
        if split not in folders:
            raise RawDataError(f"{raw_data_dir} does not have the {split} split. It has: {', '.join(folders)}.")
    chosen = [split for split in folders if split in splits or not splits]
    sources = (source for split in chosen for source in folders[split].sources(split))
    return RawFolders(tuple(sources), tuple(sorted({name for folder in folders.values() for name in folder.classes})))


def _by_split(storage: Storage, raw_data_dir: str) -> Mapping[str, _Folder]:
    files, names = storage.entries(raw_data_dir)
    found: dict[str, _Folder] = {}
    for name in names:
        split = _FOLDER_NAMES.get(name)
        if split and split in found:
            raise RawDataError(f"{raw_data_dir} has two folders for the {split} split. Rename or remove one of them.")
        if split:
            found[split] = _folder(storage, join(raw_data_dir, name))
    if not found:
        raise RawDataError(
            f"{raw_data_dir} has no folder of a split ({', '.join(_FOLDER_NAMES)}). "
            f"There is: {_some([*names, *files])}. If these are the class folders, give --validation_fraction "
            "(0 for train alone)."
        )
    return {split: found[split] for split in SPLITS if split in found}


def _one_set(storage: Storage, raw_data_dir: str, fraction: float) -> Mapping[str, _Folder]:
    if not 0 <= fraction < 1:
        raise OptionError(f"--validation_fraction={fraction}: allowed are 0 and above, and less than 1.")
    folder = _folder(storage, raw_data_dir)
    if set(folder.classes) <= set(_FOLDER_NAMES):
        raise RawDataError(
            f"{raw_data_dir} has folders by split ({', '.join(folder.classes)}). Leave out --validation_fraction."
        )
    return {"train": folder, "validation": folder} if fraction else {"train": folder}


def _folder(storage: Storage, path: str) -> _Folder:
    files, folders = storage.entries(path)
    classes = _visible(folders)
    if not classes:
        raise RawDataError(f"{path} has no class folders in it. There is: {_some(files)}.")
    for name in classes:
        _check_name(path, name)
    return _Folder(path, classes, bool(_visible(files)))


def _visible(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for name in names if not name.startswith("."))


def _check_name(path: str, name: str) -> None:
    """A class's name becomes text in records and a line in a file of names."""
    try:
        fits = name.encode().decode().splitlines() == [name]
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise RawDataError(f"{path} has a class folder {name!r}: its name must be UTF-8 text in one line. Rename it.")


def _some(names: Iterable[str]) -> str:
    return ", ".join(list(names)[:8]) or "nothing"
