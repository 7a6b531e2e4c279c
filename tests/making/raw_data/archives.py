"""Folders packed by Python's own zipfile and tarfile, as people pack them."""

import io
import tarfile
import zipfile
from pathlib import Path


def zip_of(files, method=zipfile.ZIP_DEFLATED, folders=()):
    """A zip of {name: bytes}; folders: names that get an entry of their own."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as packed:
        for name in folders:
            packed.mkdir(name)
        for name, data in files.items():
            packed.writestr(name, data)
    return buffer.getvalue()


def streamed_zip_of(files):
    """A zip written to a pipe: sizes and checksums are behind each member, not in its header."""

    class Pipe(io.RawIOBase):
        written = bytearray()

        def writable(self):
            return True

        def write(self, data):
            self.written += data
            return len(data)

    Pipe.written = bytearray()
    with zipfile.ZipFile(Pipe(), "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in files.items():
            packed.writestr(name, data)
    return bytes(Pipe.written)


def tar_of(files, form=tarfile.GNU_FORMAT, folders=(), mode="w"):
    """A tar of {name: bytes}; folders: names that get an entry of their own."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=form) as tar:
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE
            tar.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def files_below(directory: Path):
    """{relative path: bytes} of all files."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def folders_below(directory: Path):
    """The relative paths of all folders, with the slash that archives end them with."""
    return [
        f"{path.relative_to(directory)}/" for path in sorted(directory.rglob("*")) if path.is_dir()
    ]
