"""The page of trainer.rewind: the records that training steps saw, with pictures or texts, and with losses if known."""

from collections.abc import Iterable, Mapping

import numpy as np

from pipeline.describing.shown_records import ShownRecord
from pipeline.pages.page import Block, Cell, Note, Page, Pictures, Section, Table
from trainer.history.rows import SeenRecord, SeenStep

__all__ = ["rewind_page"]


def rewind_page(
    workdir: str, steps: Iterable[SeenStep], told: Mapping[int, str], with_losses: bool, made_by: str
) -> Page:
    """A page with a section per step. told: a sentence about each step. with_losses: whether losses were computed."""
    sections = [Section(f"Step {seen.step:,}", list(_blocks(seen, told[seen.step], with_losses))) for seen in steps]
    order = "Those with the largest losses come first." if with_losses else "They are in the order of the batch."
    return Page(
        f"What the training in {workdir} saw",
        f"The records of {len(sections):,} training step{'s' * (len(sections) != 1)}. {order}",
        sections,
        made_by,
    )


def _blocks(seen: SeenStep, told: str, with_losses: bool) -> Iterable[Block]:
    shown = f", of which {len(seen.records):,} are shown" if len(seen.records) < seen.num_rows else ""
    yield Note(f"{told} {seen.num_rows:,} records{shown}.")
    numbers = np.array([record.index for record in seen.records], np.int64)
    pairs = list(zip(seen.records, seen.places.shown(numbers), strict=True))
    if pictured := [(shown.pictures[0], _lines(record)) for record, shown in pairs if shown and shown.pictures]:
        yield Pictures(pictured)
    yield _table(pairs, with_losses)


def _lines(record: SeenRecord) -> list[str]:
    place, loss = record.place, "" if record.loss is None else f"loss {record.loss:.4g}"
    return [loss or place.label, place.label if loss else "", place.key, f"row {record.row}", record.note]


def _told(shown: ShownRecord) -> list[str]:
    return [*shown.texts, *(f"{key}: {value}" for key, value in shown.values.items())]


def _table(pairs: list[tuple[SeenRecord, ShownRecord | None]], with_losses: bool) -> Table:
    names = ["row", "index", "epoch", "label", "key", "split", "shard", "offset", "note", "content"]
    rows: list[list[Cell]] = []
    for record, shown in pairs:
        place = record.place
        content = "" if shown is None or shown.pictures else shown.problem or " · ".join(_told(shown))
        cells: list[Cell] = [record.row, record.index, record.epoch, place.label, place.key]
        cells += [place.split, place.shard, place.offset, record.note, content]
        rows.append([*([record.loss] if with_losses else []), *cells])
    if with_losses:
        names.insert(0, "loss")
    kept = [at for at in range(len(names)) if any(row[at] not in ("", None) for row in rows)]
    return Table([names[at] for at in kept], [[row[at] for at in kept] for row in rows])
