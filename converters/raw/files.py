"""What the searches for raw data share: the files of --raw-data-dir, and what to say of others."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from beam_jobs.converter import Source
from pipeline.errors import RawDataError
from pipeline.sizes import counted
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Stat, Storage, find_file, join

NO_OTHERS = "(?!)"  # for `unread`: matches no name
_MOST_PATHS = 100  # to one directory


def open_raw_data(raw_data_dir: str) -> Storage:
    """The storage of the raw data. Raises RawDataError if the path does not exist."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(
            f"--raw-data-dir={raw_data_dir} does not exist. Give the directory of the raw data."
        )
    return storage


def first_few(names: Iterable[str]) -> str:
    """The first names, up to 8, for errors that list what was found instead."""
    return ", ".join(list(names)[:8]) or "nothing"


def is_hidden(name: str) -> bool:
    """Whether to ignore a file or folder: hidden ones, and what macOS and Windows add to zips and
    folders."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini")


def files_below(
    storage: Storage, directory: str, searched: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Stat]]:
    """All files below the directory by relative path, sorted by folder; without hidden ones.
    searched: whether to look into a folder of this name.

    Raises RawDataError for a directory with too many paths: two links in each of 27 directories
    make 134 million."""
    pending = [""]
    paths = Counter[Path]()
    while pending:
        place = pending.pop()
        path = join(directory, place) if place else directory
        if not is_remote(path):
            below = Path(directory).resolve() / place
            real = below.resolve()
            if real in map(Path.resolve, below.parents):  # a link to a directory above
                continue
            paths[real] += 1
            if paths[real] > _MOST_PATHS:
                links = filter(Path.is_symlink, reversed((Path(path), *Path(path).parents)))
                raise RawDataError(
                    f"{real} is found by more than {_MOST_PATHS} paths, through symbolic links "
                    f"such as {first_few(map(str, links))}. Remove the links, or give a directory "
                    "without them."
                )
        files, folders = storage.entries(path)
        yield from ((f"{place}{name}", stat) for name, stat in files.items() if not is_hidden(name))
        pending += [
            f"{place}{name}/"
            for name in reversed(folders)
            if not is_hidden(name) and searched(name)
        ]


def left_out(names: Sequence[str], why: str) -> Sequence[str]:
    """A note that these files are not read, if there are any. why: a sentence."""
    if not names:
        return []
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return [f"{counted(len(names), 'file')} not read: {', '.join(names[:5])}{more}. {why}"]


def unread(
    raw_data_dir: str, sources: Sequence[Source], splits: str | None, used: str
) -> Sequence[str]:
    """A note about what else is in the directory of the raw data, unless --splits chose some.
    used: matches the names of other files that the conversion reads; NO_OTHERS if it reads none."""
    storage = open_storage(raw_data_dir)
    if splits or find_file(storage, raw_data_dir):
        return []
    files, folders = storage.entries(raw_data_dir)
    uris = [source.origin or source.uri for source in sources]
    read = {uri.removeprefix(join(raw_data_dir, "")).partition("/")[0] for uri in uris}
    names = [*([] if raw_data_dir in uris else files), *folders]
    rest = [n for n in names if not (n in read or is_hidden(n) or re.search(used, n))]
    return left_out(rest, "This conversion does not read files of these names.")
