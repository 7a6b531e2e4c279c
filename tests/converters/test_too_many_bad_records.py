"""Far more bad records than are allowed: a conversion stops soon, and a run that allows them all loses none."""

import pytest
from raw_data.images import make_image
from tfrecord_numbers import payload

from converters import image_folder_to_gcs, table_to_gcs, text_to_gcs, tfrecord_to_gcs
from converters.table import finding, row_converter
from converters.text import converter as text_converter
from pipeline.commands.verify import main as verify
from pipeline.errors import ConversionError, RawDataError
from pipeline.raw import blocks
from pipeline.raw.block import Block
from pipeline.raw.rows import Table
from pipeline.shards.frames import frame
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")
BAD = 1500
ONE_SET = "--validation-fraction=0"
PHOTO = make_image(0, "JPEG", "RGB", (8, 8))


def csv(*rows):
    return "\n".join([*rows, ""]).encode()


# name: (the command, its raw data, its options)
KINDS = {
    "rows with a wrong value": (table_to_gcs, {"t.csv": csv("a,b", "1,2", *["x,1"] * BAD)}, (ONE_SET, "--columns=a=int64")),
    "rows of a wrong length": (table_to_gcs, {"t.csv": csv("a,b", "1,2", *["1"] * BAD)}, (ONE_SET, "--text-column=a")),
    "rows whose keys are equal": (
        table_to_gcs,
        {"t.csv": csv("a,b", "1,2", *["x,1"] * (BAD + 1))},
        (ONE_SET, "--text-column=a", "--key-column=a"),
    ),
    "images that are missing": (
        table_to_gcs,
        {"a.jpg": PHOTO, "t.csv": csv("a", "a.jpg", *(f"{i}.jpg" for i in range(BAD)))},
        (ONE_SET, "--image-column=a"),
    ),
    "empty images": (image_folder_to_gcs, {"cat/a.jpg": PHOTO} | {f"cat/{i}.jpg": b"" for i in range(BAD)}, (ONE_SET,)),
    "images that are no images": (
        image_folder_to_gcs,
        {"cat/a.jpg": PHOTO} | {f"cat/{i}.jpg": b"no image" for i in range(BAD)},
        (ONE_SET,),
    ),
    "empty documents": (text_to_gcs, {"t.csv": csv("text,n", "a text,1", *[",1"] * BAD)}, (ONE_SET,)),
    "records of another schema": (
        tfrecord_to_gcs,
        {"train.tfrecord": b"".join(map(frame, [*[payload(0)] * 32, *[b"?"] * BAD]))},
        (),
    ),
}  # fmt: skip


@pytest.fixture(params=KINDS)
def convert(request, tmp_path):
    """Converts a kind of raw data into a directory of this name, as the command does."""
    command, files, options = KINDS[request.param]
    write(tmp_path / "raw", files)
    return lambda out, *flags: command.main(
        [f"--raw-data-dir={tmp_path}/raw", f"--output={tmp_path / out}", *options, *flags]
    )


def write(directory, files):
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


def digest(out):
    return read_manifest(str(out)).splits["train"].plan_digest


def test_too_many_stop_the_conversion_and_a_run_that_allows_them_lists_each(convert, out):
    with pytest.raises(
        ConversionError, match=r"1,\d+ bad records; --max-bad-records allows 0:\n(  .+\n){11}"
    ):
        convert("out")
    assert not list(out.glob("_rejects/*"))
    assert not (out / "manifest.json").exists()
    assert sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) < 200_000
    convert("out", f"--max-bad-records={BAD}")
    lines = (out / "_rejects/train.jsonl").read_text().splitlines()
    assert len(lines) == BAD
    assert verify([str(out)]) == 0


PLANNED = ["rows with a wrong value", "images that are missing", "empty documents"]


@pytest.mark.parametrize("convert", PLANNED, indirect=True)
def test_how_many_are_allowed_is_no_part_of_the_plan(convert, tmp_path):
    for number in (BAD, 99999):
        convert(str(number), f"--max-bad-records={number}")
    assert digest(tmp_path / str(BAD)) == digest(tmp_path / "99999")


def test_a_dry_run_stops_as_well_or_lists_as_many(tmp_path, out, capsys):
    def dry_run(kind):
        command, files, options = KINDS[kind]
        write(tmp_path / kind, files)
        place = [f"--raw-data-dir={tmp_path / kind}", f"--output={out}"]
        return command.main([*place, *options, "--dry-run"])

    with pytest.raises(ConversionError, match="bad records; --max-bad-records allows 0"):
        dry_run("empty documents")
    assert dry_run("rows whose keys are equal") == 1
    assert capsys.readouterr().out.count("  rejected: ") == 1000
    assert not out.exists()


def test_too_many_in_several_tables_are_not_listed_and_the_list_of_a_finished_run_stays(
    tmp_path, out
):
    bad = csv("text,n", *["a,1", *["1"] * 40] * 10)
    write(tmp_path / "raw", {f"train-{i}.csv": bad for i in range(3)})
    command = [f"--raw-data-dir={tmp_path}/raw", f"--output={out}", "--text-column=text"]
    command += ["--num-train-shards=3"]  # about 400 for each
    listed = out / "_rejects/train.jsonl"
    for _ in range(2):
        with pytest.raises(ConversionError, match="1,200 bad records; --max-bad-records allows 0"):
            table_to_gcs.main(command)
        assert not listed.exists()
    assert table_to_gcs.main([*command, "--max-bad-records=1200"]) == 0
    with pytest.raises(ConversionError, match="1,200 bad records"):
        table_to_gcs.main(command)
    assert len(listed.read_text().splitlines()) == 1200
    assert verify([str(out)]) == 0


ROWS = 30_000  # far more than are allowed
READERS = {
    # the block in which the limit is exceeded; and of those that are packed, one that is read ahead
    "columns": (finding, "blocks_of", table_to_gcs, (), 2048),
    "texts": (row_converter, "blocks_of", table_to_gcs, ("--text-column=a",), 2 * 2048),
    "images": (Table, "rows", table_to_gcs, ("--image-column=a",), 3 * 4096),
    # the window in which the limit is exceeded, and the next one, which is read ahead
    "documents": (text_converter, "documents", text_to_gcs, ("--text-column=a",), 2002),
}


@pytest.mark.parametrize("reader", READERS)
def test_rows_far_beyond_the_limit_are_not_read(reader, tmp_path, out, monkeypatch):
    place, name, command, options, most = READERS[reader]
    original, rows = getattr(place, name), []

    def counting(*args, **options):
        for row in original(*args, **options):
            rows.extend([None] * len(row) if isinstance(row, Block) else [None])
            yield row

    monkeypatch.setattr(place, name, counting)
    monkeypatch.setattr(text_converter, "_WINDOW_BYTES", 1000)
    monkeypatch.setattr(blocks, "PIECE_BYTES", 1 << 12)  # 2048 rows
    write(tmp_path / "raw", {"t.csv": csv("a,b", *["1"] * ROWS)})
    with pytest.raises((ConversionError, RawDataError), match="--max-bad-records"):
        command.main([f"--raw-data-dir={tmp_path}/raw", f"--output={out}", ONE_SET, *options])
    assert 1000 < len(rows) <= most


def test_as_many_bad_rows_as_can_be_listed_are_listed(tmp_path, out):
    write(tmp_path / "raw", {"t.csv": csv("a,b", "1,2", *["1"] * 1000)})
    command = [f"--raw-data-dir={tmp_path}/raw", f"--output={out}", ONE_SET]
    with pytest.raises(ConversionError, match=r"1,000 bad records[\s\S]*All are listed in"):
        table_to_gcs.main(command)
    assert len((out / "_rejects/train.jsonl").read_text().splitlines()) == 1000


def test_tables_without_a_good_row_say_what_is_wrong_with_the_first_ones(tmp_path, out):
    command = [f"--raw-data-dir={tmp_path}/raw", f"--output={out}", ONE_SET]
    write(tmp_path / "raw", {"t.csv": csv("a,b", "1;2", "3", "4,5,6", "7")})
    with pytest.raises(RawDataError) as error:
        table_to_gcs.main([*command, "--label-column=b"])
    assert str(error.value).replace(f"{tmp_path}/raw/", "").splitlines() == [
        "t.csv: all 4 rows are bad:",
        "  t.csv:2: 1 cells; the header has 2",
        "  t.csv:3: 1 cells; the header has 2",
        "  t.csv:4: 3 cells; the header has 2",
        "Add or repair rows; see also --delimiter and --encoding.",
    ]
    write(tmp_path / "raw", {"t.csv": b"a,b\n"})
    with pytest.raises(RawDataError, match=r"raw/t.csv: no rows, at most a header\."):
        table_to_gcs.main([*command, "--label-column=b"])
    write(tmp_path / "raw", {"u.csv": b"a,b\n1,2\n"})  # one table without rows is none to refuse
    assert table_to_gcs.main(command) == 0
