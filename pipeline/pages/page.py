"""Pages: an HTML file each, which a template draws from facts.

A template extends page.html, which has the style, and draws with the macros of blocks.html. The
file needs neither a network nor scripts: its style and pictures are inside, and it asks browsers to
load nothing else. Every value is escaped, and written as people read it."""

import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import OptionError, StorageError, printable
from pipeline.packages import how_to_install
from pipeline.sizes import MB, counted, format_bytes, format_number, format_seconds, format_share
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, write_file

if TYPE_CHECKING:
    from jinja2 import Environment

MOST_BYTES = 5 * MB
"""A page that is larger opens slowly and is hard to send; commands show fewer pictures instead."""
_HEAD = b"content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"  # of page.html


class Share(float):
    """A number that is shown in percent."""


def page_html(template: Path, facts: dict[str, Any]) -> str:
    """The page that the template draws from these facts, by name.

    Of the facts, page.html takes `title`, `lead` (a sentence below it) and `made_by` (a command, or
    ""). Raises OptionError, with the command that installs it, if jinja2 is missing."""
    return _environment().from_string(template.read_text("utf-8")).render(facts)


def write_page(path: str, html: str) -> int:
    """Writes the page to a path on a disk or in a bucket and returns its size in bytes.

    The file appears complete or not at all. Raises StorageError."""
    data = html.encode("utf-8", "backslashreplace")
    if len(data) > MOST_BYTES:
        raise StorageError(
            f"{path} would have {format_bytes(len(data))}, more than {format_bytes(MOST_BYTES)}."
        )
    storage = open_storage(path)
    _check_replaceable(storage, path)  # again: the run may have taken days
    write_file(storage, path, data)
    return len(data)


def check_page(path: str) -> None:
    """Raises OptionError now for what would prevent writing a page to this path later: a directory
    in its place, a package that is missing."""
    if path == "":
        raise OptionError("the page's path is empty. Give the name of a file, such as page.html.")
    storage = open_storage(path)
    if path.endswith("/") or Path(path).is_dir():
        raise OptionError(
            f"{path!r} is a directory. Give the name of a file in it: {path.rstrip('/')}/page.html."
        )
    _check_replaceable(storage, path)
    if not is_remote(path):
        # now: the page comes after a long time
        parent = next(parent for parent in Path(path).absolute().parents if parent.exists())
        try:
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as e:
            raise OptionError(
                f"cannot write {path}: {parent}: {e.strerror}. Give a file in another directory."
            ) from e
    if find_spec("jinja2") is None:
        raise OptionError(f"pages need jinja2. Install it: {how_to_install('pages')}.")


def _check_replaceable(storage: Storage, path: str) -> None:
    if storage.exists(path):
        with storage.open(path) as file:
            if _HEAD in file.read(4 * len(_HEAD)) and not Path(path).is_symlink():
                return
        raise OptionError(
            f"{path} exists and is not a page of infeed. Give another name, or move the file."
        )


@cache
def _environment() -> "Environment":
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ModuleNotFoundError as e:
        raise OptionError(f"pages need {e.name}. Install it: {how_to_install('pages')}.") from e

    def written(value: Any) -> Any:
        """What a template prints: numbers as people write them, texts without control characters,
        which jinja2 then escapes."""
        if isinstance(value, int | float):
            return format_share(value) if isinstance(value, Share) else format_number(value)
        return printable(value) if type(value) is str else value

    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        finalize=written,
        loader=FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": format_bytes,
        "columns": _columns,
        "counted": counted,
        "number": format_number,
        "seconds": format_seconds,
    }
    return environment


def _columns(rows: Sequence[Sequence[Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """The columns of a table that have any cell besides "" and None, and whether all of their cells
    are numbers."""
    columns = []
    for at, name in enumerate(names):
        cells = [row[at] for row in rows if row[at] is not None]
        if any(cell != "" for cell in cells):
            numeric = all(isinstance(cell, int | float) for cell in cells)
            columns.append({"name": name, "at": at, "numeric": numeric})
    return columns
