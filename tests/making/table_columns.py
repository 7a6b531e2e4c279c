"""The columns that tables have, for converters that tests make."""

from converters.table.columns import Column
from converters.table.finding import Finder, Found, found_columns


def find_columns(tables, kinds, separator=None) -> dict[Column, str]:
    """Each with what was seen of it. kinds, separator: see Finder."""
    finder = Finder(kinds, separator)
    found = Found(finder)
    for table in tables:
        found.merge(finder.find(table))
    return dict(found_columns(found, []))
