"""The files that a user names with one string: a file, a directory, or a pattern such as "data/*.bin".

open_dataset uses it when no manifest names the files."""

from fnmatch import fnmatchcase

from pipeline.errors import OptionError, StorageError
from pipeline.sources.named_splits import first_names
from pipeline.storage.storage import Stat, Storage, join

__all__ = ["is_directory", "matching_files"]


def matching_files(uri: str, storage: Storage) -> dict[str, Stat]:
    """Path -> size and checksum, sorted by name. Directories and patterns do not include hidden files.

    Raises OptionError if there is no such file; StorageError."""
    directory, slash, name = uri.rpartition("/")
    if not _is_pattern(name):
        if not (files := _file(uri, storage) or _visible(uri, storage)):
            raise OptionError(f"{uri} is neither a file nor a directory with files. Give one, or a pattern: DIR/*.bin.")
        return files
    directory = directory or slash or "."
    there = _visible(directory, storage)
    if (named := join(directory, name)) in there:  # names may contain brackets
        return {named: there[named]}
    matching = {path: stat for path, stat in there.items() if fnmatchcase(path.rpartition("/")[2], name)}
    if not matching:
        names = [path.rpartition("/")[2] for path in there]
        raise OptionError(
            f"{uri} matches no file. {directory} has: {first_names(names)}. Only the last part can be a pattern."
        )
    return matching


def is_directory(uri: str, storage: Storage) -> bool:
    """Whether it is neither a pattern nor a file. It need not exist."""
    return not _is_pattern(uri.rpartition("/")[2]) and not _file(uri, storage)


def _is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def _file(uri: str, storage: Storage) -> dict[str, Stat]:
    try:
        return {uri: storage.stat(uri)}
    except StorageError:  # also raised for a directory
        return {}


def _visible(directory: str, storage: Storage) -> dict[str, Stat]:
    return {join(directory, name): stat for name, stat in storage.list(directory).items() if not name.startswith(".")}
