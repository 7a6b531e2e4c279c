"""Hints for users who have a table of labels in a directory of images: the command that would read it."""

import shlex
from collections.abc import Iterable, Sequence

from converters.table.rows import TABLE_SUFFIXES, column_names, table_rows
from pipeline.errors import RawDataError, StorageError
from pipeline.storage.storage import Storage, join

__all__ = ["hint_of_tables"]

_IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif")
_SPLITS = ("train", "validation", "val", "test")


def hint_of_tables(storage: Storage, directory: str, files: Iterable[str]) -> str:
    """A sentence about the first table among the files in a directory of images; "" without tables."""
    tables = [name for name in files if name.endswith(TABLE_SUFFIXES)]
    if not tables:
        return ""
    image, label = _columns(storage, join(directory, tables[0]))
    fraction = "" if tables[0].startswith(_SPLITS) else " --validation_fraction=0.1"
    columns = f"--image_column={shlex.quote(image)} --label_column={shlex.quote(label)}{fraction}"
    return (
        f"If the rows of {join(directory, tables[0])} name the images, run: python -m converters.table_to_gcs "
        f"--raw_data_dir={shlex.quote(directory)} {columns} --output=..."
    )


def _columns(storage: Storage, path: str) -> tuple[str, str]:
    """The columns of images and labels, guessed from the first row."""
    try:
        names = column_names(storage, path, None)
        first = next(table_rows(storage, path, None), None)
    except (RawDataError, StorageError):  # a hint must not fail
        return "IMAGE", "LABEL"
    cells = first.cells if first else {}
    image = next((name for name in names if str(cells.get(name)).lower().endswith(_IMAGE_SUFFIXES)), "IMAGE")
    return image, _label(names, image)


def _label(names: Sequence[str], image: str) -> str:
    after = names.index(image) + 1 if image in names else 0
    others = [*names[after:], *names[: max(0, after - 1)]]
    named = [name for name in others if "label" in name.lower() or "class" in name.lower()]
    return next(iter(named or others), "LABEL")
