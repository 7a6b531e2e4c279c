"""What a page says, section by section, without its markup."""

from html.parser import HTMLParser

__all__ = ["read_page"]
CELLS = ("td", "th", "h2", "pre")


def read_page(html):
    """Title of a section -> the texts in it, in the order of the page; a row of a table is a tuple."""
    reader = _Reader()
    reader.feed(html)
    return reader.sections


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sections, self._texts, self._title, self._row, self._cell = {}, [], "", [], None

    def handle_starttag(self, tag, attrs):
        if tag == "section":
            self._texts, self._title = [], ""
        elif tag == "tr":
            self._row = []
        elif tag in CELLS:
            self._cell = ""

    def handle_endtag(self, tag):
        if tag == "section":
            self.sections[self._title] = self._texts
        elif tag == "tr":
            self._texts.append(tuple(self._row))
        elif tag == "h2":
            self._title = self._cell
        elif tag == "pre":
            self._texts.append(self._cell.strip())
        elif tag in CELLS:
            self._row.append(self._cell)
        if tag in CELLS:
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell += data
        elif data.strip():
            self._texts.append(data.strip())
