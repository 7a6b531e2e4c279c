"""What a page consists of, and the template that turns it into one HTML file.

The file needs neither a network nor scripts: its style and pictures are inside, and it asks
browsers to load nothing else. Every text is escaped. Commands build a Page from these blocks; none
writes HTML of its own."""

import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import OptionError, StorageError, printable
from pipeline.packages import how_to_install
from pipeline.sizes import MB, format_bytes, format_number, format_share
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Storage, write_file

if TYPE_CHECKING:
    from jinja2 import Template

MOST_BYTES = 5 * MB
"""A page that is larger opens slowly and is hard to send; commands show fewer pictures instead."""
_HEAD = b"content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"  # of page.html


@dataclass(frozen=True)
class Picture:
    """An image of `width` x `height` CSS pixels. source: a data: URI, see thumbnails. alt: what it
    shows, in words."""

    source: str
    alt: str
    width: int
    height: int
    pixelated: bool = False


class Share(float):
    """A number that is shown in percent."""


Cell = str | int | float | None
"""A cell of a table. Numbers are formatted and aligned; None is an empty cell."""


@dataclass(frozen=True, kw_only=True)
class _Titled:
    """The fields of all blocks: a title above them and a note below."""

    title: str = ""
    note: str = ""


@dataclass(frozen=True)
class Table(_Titled):
    """Rows of cells below named columns."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    @property
    def numeric(self) -> list[bool]:
        """Whether a column has numbers; empty cells are ignored."""
        columns = map(self._cells, range(len(self.columns)))
        return [bool(cells) and all(map(_is_number, cells)) for cells in columns]

    def without_empty_columns(self) -> "Table":
        """The table without the columns in which every cell is empty."""
        filled = [bool({*self._cells(at)} - {""}) for at in range(len(self.columns))]
        rows = [list(compress(row, filled)) for row in self.rows]
        return replace(self, columns=list(compress(self.columns, filled)), rows=rows)

    def _cells(self, at: int) -> list[Cell]:
        """The cells of a column, without None."""
        return [row[at] for row in self.rows if row[at] is not None]


@dataclass(frozen=True)
class Bars(_Titled):
    """A horizontal bar for each named count. The title says what is counted."""

    rows: Sequence[tuple[str, int]]

    @property
    def most(self) -> int:
        """The largest count, at least 1."""
        return max([1, *(count for _, count in self.rows)])


@dataclass(frozen=True)
class Matrix(_Titled):
    """Counts by row and column, shaded by their share of the row; the diagonal is shaded in another
    color."""

    names: Sequence[str]
    counts: Sequence[Sequence[int]]
    row_title: str
    column_title: str


@dataclass(frozen=True)
class Histogram(Bars):
    """An upright bar for each bin, (range, count), next to each other. low, high: of all values."""

    low: str
    high: str


@dataclass(frozen=True)
class Figures(_Titled):
    """The few results that a page is read for, large: (value, what it is, a remark)."""

    items: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Pictures(_Titled):
    """A grid of pictures, or of several above each other, with lines of text below them. The first
    twelve are open."""

    items: Sequence[tuple[Picture | Sequence[Picture], Sequence[str]]]


@dataclass(frozen=True)
class Code(_Titled):
    """Preformatted text, such as a command."""

    text: str


@dataclass(frozen=True)
class Note(_Titled):
    """A paragraph."""

    text: str
    warning: bool = False


Block = Figures | Table | Bars | Matrix | Pictures | Code | Note


@dataclass(frozen=True)
class Section:
    """Blocks below a heading, if it has one. folded: whether readers have to open it."""

    title: str
    blocks: Sequence[Block]
    folded: bool = False


@dataclass(frozen=True)
class Page:
    """A title, a sentence about it, and sections. made_by: the command that wrote the page."""

    title: str
    lead: str
    sections: Sequence[Section] = field(default_factory=tuple)
    made_by: str = ""

    def html(self) -> str:
        """The file's text. Raises OptionError, with the command that installs it, if jinja2 is
        missing."""
        sections = [section for section in self.sections if section.blocks]
        return _template().render(page=self, sections=sections)


def write_page(path: str, page: Page) -> int:
    """Writes the page to a path on a disk or gs:// and returns its size in bytes.

    The file appears complete or not at all. Raises StorageError."""
    data = page.html().encode("utf-8", "backslashreplace")
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float)


def _number(value: float) -> str:
    return format_share(value) if isinstance(value, Share) else format_number(value)


def _pictures(pictures: Picture | Sequence[Picture]) -> Sequence[Picture]:
    return [pictures] if isinstance(pictures, Picture) else pictures


def _lines(texts: Iterable[str]) -> list[str]:
    return [printable(text) for text in texts if text]


@cache
def _template() -> "Template":
    try:
        from jinja2 import Environment, StrictUndefined
    except ModuleNotFoundError as e:
        raise OptionError(f"pages need {e.name}. Install it: {how_to_install('pages')}.") from e
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "shown": printable,
        "number": _number,
        "lines": _lines,
        "pictures": _pictures,
        "kind": lambda block: type(block).__name__.lower(),  # the macro that draws it
    }
    environment.tests["number"] = _is_number
    return environment.from_string(Path(__file__).with_name("page.html").read_text("utf-8"))
