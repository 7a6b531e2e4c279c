"""Tables that pandas and polars write: each cell is read back equal, or its column is refused by name."""

import datetime
import math
import shutil
from decimal import Decimal

import numpy as np
import polars as pl
import pytest
from converted import records_of
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st
from sweep import SWEEP

from converters import table_to_gcs
from pipeline.errors import ConversionError, OptionError, RawDataError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.schema import MISSING_VALUES, read_statistics
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\x85\u2028\u2029"), max_size=8)
times = st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2250, 1, 1))
COLUMNS = {
    "integers": (st.integers(-(2**63), 2**63 - 1), pl.Int64),
    "floats": (st.floats(width=32, allow_infinity=False, allow_nan=False), pl.Float32),
    "texts": (texts, pl.String),
    "codes": (st.from_regex(r"[+0]?[0-9]{1,25}", fullmatch=True), pl.String),
    "markers": (st.sampled_from([*MISSING_VALUES, "7", "1.5"]), pl.String),
    "flags": (st.booleans(), pl.Boolean),
    "days": (times.map(datetime.datetime.date), pl.Date),
    "ms": (times.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000)), pl.Datetime("ms")),
    "us": (times, pl.Datetime("us")),
    "ns": (times, pl.Datetime("ns")),
    "decimals": (st.integers(-(10**20), 10**20).map(Decimal), pl.Decimal(38, 0)),
}  # fmt: skip
FORMATS = ["parquet", "csv", "tsv", "jsonl", "arrow"]


@st.composite
def tables(draw):
    """A table's columns: names, polars' types and cells, of which some may be missing."""
    rows = draw(st.integers(1, 12))
    columns = {"row": (pl.Int64, [*range(rows)])}
    for kind in draw(st.lists(st.sampled_from([*COLUMNS]), min_size=1, max_size=3, unique=True)):
        cells, dtype = COLUMNS[kind]
        cells = st.none() | cells if draw(st.booleans()) else cells
        columns[kind] = (dtype, draw(st.lists(cells, min_size=rows, max_size=rows)))
    return columns


def written(columns, directory, form, library, delimiter):
    """Writes the table, and returns the flags that its format needs."""
    frame = pl.DataFrame(
        {name: pl.Series(cells, dtype=dtype) for name, (dtype, cells) in columns.items()}
    )
    path = str(directory / f"train.{form}")
    table = frame.to_arrow().to_pandas(date_as_object=True) if library == "pandas" else None
    if form == "parquet":
        table.to_parquet(path) if library == "pandas" else frame.write_parquet(path)
    elif form == "arrow":
        frame.write_ipc(path)
    elif form == "jsonl":
        if library == "pandas":
            table.to_json(path, orient="records", lines=True, date_format="iso", date_unit="ns")
        else:
            frame.write_ndjson(path)
    else:
        separator = "\t" if form == "tsv" else delimiter
        if library == "pandas":
            table.to_csv(path, sep=separator, index=False)
        else:
            frame.write_csv(path, separator=separator, quote_style="non_numeric")
        return [f"--delimiter={'tab' if separator == chr(9) else separator}"] * (separator != ",")
    return []


def number_of(cell, unit):
    """The cell as a number of the unit, by NumPy."""
    if isinstance(cell, datetime.date):
        resolution = {"days": "D"}.get(unit.split(" ")[0], unit.split(" ")[0])
        return int(np.datetime64(cell).astype(f"datetime64[{resolution}]").astype(np.int64))
    return Decimal(cell) if isinstance(cell, str) else cell


def is_text_of(cell, text):
    """Whether a text is the cell as pandas or polars write it."""
    if cell is None:
        return text == ""
    if isinstance(cell, datetime.date):  # of which a datetime is one, too
        at = datetime.datetime.fromisoformat(text)
        return cell in (at, at.date())
    if isinstance(cell, bool):
        return text.lower() == str(cell).lower()
    return Decimal(text) == cell if isinstance(cell, Decimal | int | float) else text == cell


def is_same(cell, value, feature, names):
    """Whether a value means what the cell did."""
    if feature.dtype == "bytes":
        return is_text_of(cell, value.decode())
    if names:
        text = names[value] if value >= 0 else ""
        return is_text_of(cell.strip() if isinstance(cell, str) else cell, text)
    if feature.dtype == "float32" and (cell in (None, "") or cell in MISSING_VALUES):
        return math.isnan(value)
    number = number_of(cell, feature.unit)
    return value == (np.float32(number) if feature.dtype == "float32" else number)


@settings(
    max_examples=300 if SWEEP else 50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(
    tables(),
    st.sampled_from(FORMATS),
    st.sampled_from(["pandas", "polars"]),
    st.sampled_from([",", ";", "|", "\t"]),
)
def test_every_cell_is_read_back_or_its_column_is_refused_by_name(
    tmp_path_factory, columns, form, library, delimiter
):
    # pandas rounds floats in JSON
    assume("floats" not in columns or (form, library) != ("jsonl", "pandas"))
    directory = tmp_path_factory.mktemp("others")
    try:
        (directory / "raw").mkdir()
        flags = written(columns, directory / "raw", form, library, delimiter)
        try:
            table_to_gcs.main(
                [f"--raw-data-dir={directory}/raw", f"--output={directory}/out", *flags]
            )
        except (OptionError, ConversionError, RawDataError) as error:
            refused = str(error)
        else:
            refused = ""
        if refused:
            event("refused")
            assert any(f"'{name}'" in refused for name in columns)
            return
        event(f"{form} of {library}")
        schema = read_manifest(str(directory / "out")).schema
        statistics = read_statistics(LocalStorage(), str(directory / "out"))["train"]
        names = {name: [*column.categories] for name, column in statistics.items()}
        for record in records_of(directory / "out"):
            (row,) = record["row"]
            for name, (_, cells) in columns.items():
                (value,) = record[name]
                assert is_same(cells[row], value, schema.features[name], names.get(name)), (
                    name,
                    cells[row],
                    value,
                )
    finally:
        shutil.rmtree(directory)
