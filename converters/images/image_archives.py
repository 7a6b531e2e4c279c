"""Class folders inside a tar or zip, read in place: the same folders and files as after unpacking
it.

The package image_folder asks where the class folders are and which files they have. Nothing is
extracted, but member names that lead out of the archive are refused all the same."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from beam_jobs.converter import Source
from beam_jobs.scratch import Scratch, readable
from converters.raw.files import is_hidden
from converters.raw.tars import Member, entries
from converters.raw.zips import zip_members
from pipeline.errors import RawDataError
from pipeline.raw.image_files import ENCODED_AGAIN
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import COMPRESSED, Stat, join

_SUFFIXES = (".zip", ".tar", ".tgz", *(f".tar{suffix}" for suffix in COMPRESSED))
KNOWN_SUFFIXES = (*_SUFFIXES, ".tbz2", ".tar.xz", ".txz", ".7z", ".rar")
IMAGE_SUFFIXES = (".jpg", ".jpeg", *ENCODED_AGAIN)
_SHOWN_FILES = 8
_MAX_DEPTH = 20  # deeper folders are not told apart: a name may have thousands of parts

Place = tuple[str, ...]  # the parts of a path


@dataclass
class _ArchiveFolder:
    folders: set[str] = field(default_factory=set)
    files: list[str] = field(default_factory=list)  # the first few
    has_images: bool = False  # by the names of all files

    def add(self, file: str) -> None:
        self.has_images |= file.lower().endswith(IMAGE_SUFFIXES)
        if len(self.files) < _SHOWN_FILES:
            self.files.append(file)


@dataclass(frozen=True)
class ClassFolders:
    """A folder of class folders, on its own or in an archive.

    path: for error messages.
    classes: the names of the class folders.
    files: next to these, the first few of an archive.
    empty: the classes of an archive without files.
    place: in the archive."""

    path: str
    classes: tuple[str, ...]
    files: Sequence[str]
    empty: Sequence[str] = ()
    archive: "Archive | None" = None
    place: Place = ()

    def sources(self, split: str) -> Iterator[Source]:
        """The units to scan: the archive, or each class folder."""
        if self.archive:
            tag = "/".join(self.place)
            yield replace(self.archive.file, split=split, tag=tag, kind=self.archive.kind)
            return
        if self.files:
            yield Source(split, self.path, Stat(0), kind="folder")
        for name in self.classes:
            yield Source(split, join(self.path, name), Stat(0), tag=name, kind="folder")


@dataclass(frozen=True)
class Archive:
    """A tar or zip and its folders. name: as the user knows it."""

    name: str
    file: Source

    @property
    def kind(self):
        """The kind of its Source."""
        return "zip" if self.file.uri.endswith(".zip") else "tar"

    @cached_property
    def folders(self) -> dict[Place, _ArchiveFolder]:
        """The folders by place, without hidden ones. Reads all names. Raises RawDataError."""
        folders: dict[Place, _ArchiveFolder] = {(): _ArchiveFolder()}
        for place, member in _members(self.file.uri, self.kind, self.name):
            if any(map(is_hidden, place)):
                continue
            folder = (place if member.kind == "folder" else place[:-1])[:_MAX_DEPTH]
            _add(folders, folder)
            if member.kind != "folder":
                folders[folder].add(place[-1])
        return folders

    def class_folders_at(self, place: Place) -> ClassFolders:
        """The class folders in a folder of the archive, sorted by name."""
        folder = self.folders[place]
        classes = sorted(folder.folders)
        depth = len(place)
        filled = {inside[: depth + 1] for inside, each in self.folders.items() if each.files}
        empty = [name for name in classes if (*place, name) not in filled]
        path = "/".join((self.name, *place))
        return ClassFolders(path, tuple(classes), folder.files, empty, self, place)

    def class_folders(self, until: Collection[str]) -> ClassFolders:
        """Its folder of class folders: the topmost one that does not merely wrap another folder.

        until: names of folders that a wrapper never contains, in lower case."""
        place: Place = ()
        while len(names := self.folders[place].folders) == 1:
            inside = (*place, *names)
            if inside[-1].lower() in until:
                break
            # the only class
            if self.folders[inside].has_images or not self.folders[inside].folders:
                break
            place = inside
        return self.class_folders_at(place)


def archive_stem(name: str) -> str | None:
    """The name of an archive without its suffix, even if that format cannot be read; None for other
    files."""
    return next(
        (name.removesuffix(suffix) for suffix in KNOWN_SUFFIXES if name.endswith(suffix)), None
    )


def open_archive(path: str, scratch: Scratch | None) -> Archive:
    """An archive by its path. scratch: for a compressed tar, see `readable`. Raises RawDataError,
    OptionError."""
    if not path.endswith(_SUFFIXES):
        raise RawDataError(
            f"{path} is in a format that cannot be read in place; {', '.join(_SUFFIXES)} can. "
            "Unpack it, or convert it to one of these."
        )
    return Archive(path, readable(path, scratch))


def class_files(source: Source) -> Iterator[tuple[str, Member]]:
    """(class, member) of the contents of a source's class folders; files next to these have class
    "".

    Members have their paths in the class folder. Folders are left out."""
    root = tuple(source.tag.split("/")) if source.tag else ()
    for path, member in _members(source.uri, source.kind, source.uri):
        place = path[len(root) :]
        if not place or path[: len(root)] != root or any(map(is_hidden, place)):
            continue
        if member.kind != "folder":
            class_name = place[0] if len(place) > 1 else ""
            yield class_name, replace(member, name="/".join(place[1:] or place))


def _members(uri: str, kind: str, name: str) -> Iterator[tuple[Place, Member]]:
    storage = open_storage(uri)
    members = (
        zip_members(storage, uri)
        if kind == "zip"
        else entries(storage, uri, 0, storage.stat(uri).bytes)
    )
    for member in members:
        parts = member.name.split("/")
        if not parts[0] or ".." in parts:
            raise RawDataError(
                f"{name} has a member {member.name[:300]!r}, which leads out of the folder it "
                "would be unpacked into. Rename the member, or unpack the archive and convert the "
                "folders."
            )
        if place := tuple(part for part in parts if part not in ("", ".")):
            yield place, member


def _add(folders: dict[Place, _ArchiveFolder], place: Place) -> None:
    if place not in folders:
        for depth, name in enumerate(place):
            folders.setdefault(place[:depth], _ArchiveFolder()).folders.add(name)
        folders[place] = _ArchiveFolder()
