"""Images of a table whose pixels are labels: what is stored of each format, and what a reader gets."""

import io
import json
import struct

import numpy as np
import pytest
from converted import ledger_of, records_of
from PIL import Image

from pipeline.commands import describe
from pipeline.datasets import eval_dataset, train_dataset
from pipeline.errors import ConversionError, OptionError
from pipeline.ops import DecodeStored
from pipeline.raw.image_files import ORIENTATION
from pipeline.shards.manifest import read_manifest
from trainer.recipes.labelled_images import raw_image

pytestmark = pytest.mark.usefixtures("without_beam")

RNG = np.random.default_rng(0)
FOUR = RNG.choice(np.array([0, 1, 2, 255], np.uint8), (6, 5))
INDICES = RNG.integers(0, 4, (6, 5), np.uint8)
DEPTHS = RNG.integers(0, 2**16, (6, 5)).astype(np.uint16)
ONES = RNG.integers(0, 2, (6, 5)).astype(bool)
COLOURS = RNG.integers(0, 256, (6, 5, 3), np.uint8)


def encoded(image, form="PNG", **options):
    buffer = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        buffer, form, **options
    )
    return buffer.getvalue()


def of_palette(indices=INDICES):
    image = Image.fromarray(indices)
    image.putpalette([0, 0, 0, 200, 0, 0, 0, 200, 0, 0, 0, 200])
    return image


def of_two_colours(indices):
    """A BMP of 8 bits whose palette has fewer colours than it has indices."""
    height, width = indices.shape
    rows = np.pad(indices[::-1], ((0, 0), (0, -width % 4))).tobytes()
    head = struct.pack("<IIIHHIIiiII", 40, width, height, 1, 8, 0, len(rows), 0, 0, 2, 0)
    return b"BM" + struct.pack("<IHHI", 62 + len(rows), 0, 0, 62) + head + b"\1\2\3\0" * 2 + rows


def values_in(data):
    """(format, mode, values), as Pillow decodes them."""
    image = Image.open(io.BytesIO(data))
    return image.format, image.mode, np.asarray(image)


@pytest.fixture
def convert(raw_tables, table, tmp_path):
    """convert({file: bytes}, *flags) -> the files that the records have, by number; a row per file."""

    def run(files, *flags):
        table("train.csv", "number,mask\n" + "".join(f"{i},{n}\n" for i, n in enumerate(files)))
        for name, data in files.items():
            (raw_tables.directory / name).write_bytes(data)
        raw_tables.convert(tmp_path / "out", *flags)
        records = records_of(tmp_path / "out")
        return [r["mask"][0] for r in sorted(records, key=lambda record: record["number"])]

    return run


PNGS = {
    "grey.png": encoded(FOUR),
    "palette.png": encoded(of_palette()),
    "depths.png": encoded(DEPTHS),
    "ones.png": encoded(ONES),
}


def test_a_png_stays_that_png_and_a_jpeg_that_jpeg(convert):
    files = {**PNGS, "photo.jpg": encoded(COLOURS, "JPEG")}
    assert convert(files) == list(files.values())


@pytest.mark.parametrize(("flags", "count"), [(["--image-format=jpeg"], 2), ([], 0)])
def test_pictures_that_are_cut_to_8_bits_are_counted(convert, capsys, flags, count):
    convert({**PNGS, "more.tif": encoded(DEPTHS, "TIFF")}, *flags)
    note = f"in {count} of 5 records values of more than 8 bits were cut to 8"
    assert (note in capsys.readouterr().out) == bool(count)


def test_pictures_that_several_rows_name_are_counted_in_each(raw_tables, table, out, capsys):
    table("train.csv", "number,mask\n" + "".join(f"{n},depths.png\n" for n in range(3)))
    (raw_tables.directory / "depths.png").write_bytes(PNGS["depths.png"])
    raw_tables.convert(out, "--image-format=jpeg")
    note = "in 3 of 3 records values of more than 8 bits were cut to 8"
    assert note in capsys.readouterr().out


LOSSLESS = [
    ("grey.bmp", encoded(FOUR, "BMP"), "L", FOUR),
    ("palette.bmp", encoded(of_palette(), "BMP"), "P", INDICES),
    ("colours.bmp", encoded(COLOURS, "BMP"), "RGB", COLOURS),
    ("palette.gif", encoded(of_palette(), "GIF"), "P", INDICES),
    ("depths.tif", encoded(DEPTHS, "TIFF"), "I;16", DEPTHS),
    ("big-endian.tif", encoded(DEPTHS.astype(">u2"), "TIFF"), "I;16", DEPTHS),
    ("palette.tiff", encoded(of_palette(), "TIFF", compression="tiff_lzw"), "P", INDICES),
    ("short.bmp", of_two_colours(FOUR), "P", FOUR),
    ("ones.tiff", encoded(ONES, "TIFF", compression="group4"), "1", ONES),
    ("colours.webp", encoded(COLOURS, "WEBP", lossless=True), "RGB", COLOURS),
    ("noted.webp", encoded(COLOURS, "WEBP", lossless=True, exif=b"Exif\0\0VP8 "), "RGB", COLOURS),
]  # fmt: skip


def test_a_lossless_image_becomes_a_png_of_the_same_values(convert):
    stored = convert({name: data for name, data, _, _ in LOSSLESS})
    for (name, _, mode, values), data in zip(LOSSLESS, stored, strict=True):
        form, stored_mode, stored_values = values_in(data)
        assert (name, form, stored_mode) == (name, "PNG", mode)
        np.testing.assert_array_equal(stored_values, values, name)


def test_a_lossy_image_becomes_a_jpeg_and_options_change_that_one_only(convert):
    photo = Image.linear_gradient("L").convert("RGB")
    files = {
        "lossy.webp": encoded(photo, "WEBP"),
        "photo.avif": encoded(photo, "AVIF"),
        "photo.jpg": encoded(photo, "JPEG"),
        "mask.png": PNGS["palette.png"],
    }
    *photos, mask = convert(files, "--max-side=64", "--apply-orientation")
    assert [values_in(data)[0] for data in photos] == ["JPEG"] * 3
    assert [values_in(data)[2].shape for data in photos] == [(64, 64, 3)] * 3
    assert mask == PNGS["palette.png"]


def test_a_new_image_to_predict_is_made_what_the_conversion_made_of_it(convert, out):
    files = {name: data for name, data, _, _ in LOSSLESS} | PNGS
    files["photo.jpg"] = encoded(COLOURS, "JPEG")
    stored = convert(files)
    schema = read_manifest(str(out)).schema
    made = [raw_image(schema, "mask", data, upright=False)["mask"] for data in files.values()]
    assert made == stored


def test_rotations_that_were_not_applied_are_counted(convert, capsys):
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    rotated = encoded(COLOURS, "JPEG", exif=exif)
    lossless = encoded(COLOURS, exif=exif)
    files = {"photo.jpg": encoded(COLOURS, "JPEG"), "rotated.jpg": rotated, "r.png": lossless}
    assert convert(files)[1:] == [rotated, lossless]
    assert "in 2 of 3 records an EXIF rotation was not applied" in capsys.readouterr().out
    animated = encoded(of_palette(), "GIF", save_all=True, append_images=[Image.new("P", (5, 6))])
    convert({"moves.gif": animated}, "--image-format=jpeg", "--overwrite")
    assert "in 1 of 1 records only the first frame" in capsys.readouterr().out


def test_image_format_jpeg_makes_jpegs_of_all_images(convert):
    stored = convert({**PNGS, "grey.bmp": encoded(FOUR, "BMP")}, "--image-format=jpeg")
    assert [values_in(data)[0] for data in stored] == ["JPEG"] * 5
    np.testing.assert_allclose(values_in(stored[2])[2], DEPTHS >> 8, atol=60)


def test_the_bytes_of_a_named_file_are_stored_unchanged(convert, out, capsys):
    files = {**PNGS, "scan.tif": encoded(DEPTHS.astype(np.float32), "TIFF"), "any.npy": b"\0\xff\n"}
    assert convert(files, "--columns=mask=file") == list(files.values())
    assert read_manifest(str(out)).schema.features["mask"].content == "raw"
    assert "mask file" in capsys.readouterr().out


def test_a_file_that_is_missing_or_not_named_is_listed(table, raw_tables, out):
    table("train.jsonl", '{"mask": "none.npy"}\n{"mask": null}\n{"mask": "train.jsonl"}\n')
    raw_tables.convert(out, "--columns=mask=file", "--max-bad-records=2")
    assert list(ledger_of(out).values()) == [
        "line 1: no file 'none.npy' can be found",
        "line 2: the file is None; it must be the path of a file, or its bytes",
    ]


UPSIDE_DOWN = Image.Exif()
UPSIDE_DOWN[0x0112] = 3
DEEP = encoded(DEPTHS.astype(np.int32), "TIFF")
LOST = [
    ("p.png", PNGS["grey.png"], "--max-side=5", "a PNG of 5x6 pixels, which --max-side or .* Give "
     "--image-format=jpeg, or change the file"),
    ("p.bmp", encoded(FOUR, "BMP"), "--max-side=5", "a BMP of 5x6 pixels, which --max-side or"),
    ("p.png", encoded(FOUR, exif=UPSIDE_DOWN), "--apply-orientation", "a PNG of 5x6 pixels, which .*-orientation would"),
    ("p.tif", DEEP, "--verify=end", "a TIFF of mode I with 32 bits per value, which a PNG would change; allowed are 1 or 8 "
     "bits, 16 bits of grey, and palettes. Give --columns COLUMN=file"),
    ("p.tif", encoded(Image.fromarray(COLOURS).convert("CMYK"), "TIFF"), "--verify=end", "a TIFF of mode CMYK with 8"),
    ("p.gif", encoded(of_palette(), "GIF", save_all=True, append_images=[of_palette(3 - INDICES)]), "--verify=end",
     "a GIF of several frames or pages; a PNG holds only one. Give --columns COLUMN=file"),
    ("p.tif", DEEP, "--image-format=jpeg", "32-bit values, which a JPEG cannot hold; save them with 8 or 16 bits"),
    ("p.png", PNGS["grey.png"][:-16] + bytes(4) + PNGS["grey.png"][-12:], "--verify=end", "truncated or damaged PNG: "),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "flag", "message"), LOST, ids=range(len(LOST)))
def test_values_that_would_be_lost_are_listed_with_the_remedy(
    convert, out, name, data, flag, message
):
    with pytest.raises(ConversionError, match=message):
        convert({name: data}, flag)
    assert list(ledger_of(out)) == ["train/train.csv:2"]


@pytest.mark.parametrize("content", ["--image-column=mask", "--text-column=mask"])
def test_stored_images_are_refused_where_a_record_has_one_column(convert, content):
    with pytest.raises(OptionError, match="--image-format=stored: not with --image-column, whose"):
        convert(PNGS, content, "--image-format=stored")


def test_an_image_column_is_made_of_jpegs_also_from_palettes(convert, raw_tables, out):
    table = "number,mask\n0,palette.png\n"
    raw_tables.directory.mkdir()
    (raw_tables.directory / "train.csv").write_text(table)
    (raw_tables.directory / "palette.png").write_bytes(PNGS["palette.png"])
    raw_tables.convert(out, "--image-column=mask", "--image-format=jpeg")
    (record,) = records_of(out)
    assert values_in(record["image/encoded"][0])[0] == "JPEG"


def test_photographs_and_masks_are_read_as_they_were_and_described(
    raw_tables, table, tmp_path, out, capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "200")
    photo = encoded(COLOURS, "JPEG")
    files = {"photo.jpg": photo, **PNGS}
    rows = "photo.jpg,palette.png,depths.png,ones.png\n" * 4
    table("train.csv", f"photo,mask,depth,one\n{rows}")
    for name, data in files.items():
        (raw_tables.directory / name).write_bytes(data)
    raw_tables.convert(out)
    ops = [
        DecodeStored("mask", into="mask", shape=(6, 5, 1)),
        DecodeStored("depth", into="depth", shape=(6, 5, 1), dtype="uint16"),
        DecodeStored("one", into="one", shape=(6, 5, 1)),
    ]
    keys = ["mask", "depth", "one"]
    expected = {"mask": INDICES, "depth": DEPTHS, "one": ONES}
    training = train_dataset(str(out), global_batch=2, ops=ops, keys=keys)
    evaluation = eval_dataset(str(out), "train", global_batch=4, ops=ops, keys=keys)
    for batch in (next(iter(training.batches())), *evaluation.batches()):
        for key, values in expected.items():
            assert batch[key].dtype == (np.uint16 if key == "depth" else np.uint8)
            for row in batch[key]:
                np.testing.assert_array_equal(row[..., 0], values)
    capsys.readouterr()
    page = tmp_path / "page.html"
    describe.main([str(out), f"--html={page}"])
    assert page.read_text().count("data:image/png") == 4 * 4
    describe.main([str(out)])
    text = capsys.readouterr().out
    for shown in ("JPEG 5x6 RGB", "PNG 5x6 P", "PNG 5x6 I;16", "PNG 5x6 1"):
        assert shown in text
    assert "unreadable" not in text + page.read_text()


@pytest.mark.parametrize("link", [False, True])
def test_a_table_cannot_name_a_file_outside_of_the_raw_data(table, raw_tables, tmp_path, out, link):
    secret = tmp_path / "secret"
    secret.write_text("key")
    table("train.jsonl", json.dumps({"mask": "link" if link else str(secret)}) + "\n")
    if link:
        (tmp_path / "raw" / "link").symlink_to(secret)
    with pytest.raises(ConversionError, match=r"the file '\S+ is not below the raw data"):
        raw_tables.convert(out, "--columns=mask=file")
