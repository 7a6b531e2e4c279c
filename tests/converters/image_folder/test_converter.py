"""Image folders: both layouts, the split by hash, classes, what goes to the ledger, the command line."""

import io
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from converted import ledger_of, records_of, single
from PIL import Image
from raw_data.archives import zip_of
from raw_data.images import make_image

from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.raw.splits import HeldOut
from pipeline.errors import ConversionError, OptionError, RawDataError
from pipeline.shards.example import encode_example
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage
from pipeline.storage.schemes import open_storage

pytestmark = pytest.mark.usefixtures("without_beam")


def names(records):
    return {(r["image/class/text"].decode(), r["image/filename"].decode()) for r in records}


def images_of(raw):
    return {
        (c, f)
        for c, files in raw.files.items()
        for f in files
        if f not in ("notes.txt", ".DS_Store")
    }


def test_every_image_arrives_once_under_its_folders_name_and_number(raw_image_folder, out):
    raw_image_folder.write("train").convert(out, "--max-bad-records=3", "--num-train-shards=3")
    records = single(records_of(out, "train"))
    assert names(records) == images_of(raw_image_folder)
    assert len(records) == 24
    for record in records:
        class_name, file = record["image/class/text"].decode(), record["image/filename"].decode()
        assert record["image/class/label"] == 1 + ["cat", "dog", "grey eel"].index(class_name)
        image = Image.open(io.BytesIO(record["image/encoded"]), formats=("JPEG",))
        assert image.size == (record["image/width"], record["image/height"])
        if file.endswith(".jpeg"):
            assert record["image/encoded"] == raw_image_folder.files[class_name][file]
    entry = read_manifest(str(out))
    assert entry.split("train").fixups == {"alpha_on_white": 6, "png_to_jpeg": 9, "webp_to_jpeg": 3}
    assert entry.labels.names == ("cat", "dog", "grey eel")


def test_both_layouts_and_both_names_for_validation_give_one_set_of_shards(
    raw_image_folder, tmp_path, shard_digests
):
    flags = ("--max-bad-records=3", "--num-train-shards=2", "--num-validation-shards=2")
    raw_image_folder.write("train").write("val").convert(tmp_path / "val", *flags)
    (raw_image_folder.directory / "val").rename(raw_image_folder.directory / "validation")
    raw_image_folder.convert(tmp_path / "validation", *flags)
    assert shard_digests(tmp_path / "val") == shard_digests(tmp_path / "validation")
    raw_image_folder.directory = raw_image_folder.directory / "train"
    raw_image_folder.convert(tmp_path / "alone", *flags, "--validation-fraction=0")
    train = {k: v for k, v in shard_digests(tmp_path / "val").items() if k.startswith("train")}
    assert train == {
        k: v for k, v in shard_digests(tmp_path / "alone").items() if k.startswith("train")
    }


def test_a_fraction_cuts_one_set_of_folders_in_two_without_loss(raw_image_folder, out):
    raw_image_folder.write().convert(out, "--max-bad-records=3", "--validation-fraction=0.3")
    train, validation = (names(single(records_of(out, split))) for split in ("train", "validation"))
    assert train | validation == images_of(raw_image_folder)
    assert not train & validation
    assert validation == {
        (c, f) for c, f in train | validation if HeldOut(0.3).split_of(f"{c}/{f}") == "validation"
    }
    assert 2 <= len(validation) <= 14


def test_a_test_fraction_takes_images_of_train_and_leaves_validation_as_it_is(
    raw_image_folder, tmp_path
):
    raw_image_folder.write()
    for out, *fractions in (("two", "0.3"), ("three", "0.3", "0.3"), ("test", "0", "0.3")):
        options = [
            f"--{split}-fraction={each}"
            for split, each in zip(("validation", "test"), fractions, strict=False)
        ]
        raw_image_folder.convert(tmp_path / out, "--max-bad-records=3", *options)

    def split(out, name):
        return names(single(records_of(tmp_path / out, name)))

    assert split("three", "validation") == split("two", "validation")
    assert split("three", "train") | split("three", "test") == split("two", "train")
    assert len(split("three", "test")) >= 2
    assert split("test", "train") | split("test", "test") == images_of(raw_image_folder)
    assert not (tmp_path / "test" / "_shards" / "validation.plan.json").exists()


def test_the_validation_split_depends_on_names_and_grows_with_the_fraction():
    places = [f"class {i % 7}/{i}.jpg" for i in range(20_000)]
    fractions = (0.0, 0.1, 0.2, 0.999)
    chosen = {
        each: {p for p in places if HeldOut(each).split_of(p) == "validation"} for each in fractions
    }
    assert [round(len(found) / len(places), 2) for found in chosen.values()] == [0.0, 0.1, 0.2, 1.0]
    assert chosen[0.1] < chosen[0.2] < chosen[0.999]
    # Fixed for good: another hash would move images between the splits of a data set that grows.
    assert sorted(chosen[0.1])[:3] == [
        "class 0/10059.jpg",
        "class 0/10080.jpg",
        "class 0/10094.jpg",
    ]


def test_files_that_are_not_images_are_listed_and_hidden_files_ignored(raw_image_folder, out):
    raw_image_folder.write("train")
    train = raw_image_folder.directory / "train"
    (train / "README.md").write_text("beside the classes")
    (train / ".git").mkdir()
    (train / "cat/.thumbnails").mkdir()
    (train / "cat/empty folder").mkdir()
    (train / "dog/empty.png").write_bytes(b"")
    with pytest.raises(ConversionError, match=r"split 'train': 5 bad records") as refused:
        raw_image_folder.convert(out)
    # by its path, not by its key
    assert f"  {train}/cat/notes.txt: not a JPEG" in str(refused.value)
    assert ledger_of(out) == {
        "train/README.md": "a file beside the class folders: it has no class",
        "train/dog/empty.png": "an empty file, or a link to none",
        **{
            f"train/{name}/notes.txt": "not a JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC file"
            for name in raw_image_folder.files
        },
    }


def test_files_in_folders_below_a_class_folder_belong_to_the_class(raw_image_folder, out):
    raw_image_folder.write("train")
    cats = raw_image_folder.directory / "train/cat"
    for place in ("2024/05", "2025", ".thumbnails/05"):
        (cats / place).mkdir(parents=True)
        shutil.copy(cats / "0.jpeg", cats / place / "0.jpeg")
    (cats / "2025/linked").symlink_to(cats / "2024")
    (cats / "2025/circle").symlink_to(cats)
    raw_image_folder.convert(out, "--max-bad-records=3")
    records = single(records_of(out))
    copies = [r for r in records if r["image/filename"] == b"0.jpeg"]
    assert [(r["image/class/text"], r["image/class/label"]) for r in copies] == [(b"cat", 1)] * 4
    assert len(records) == 24 + 3
    assert [key for key in keys_of(raw_image_folder.directory) if key.endswith("/0.jpeg")] == [
        f"train/cat/{place}0.jpeg" for place in ("", "2024/05/", "2025/", "2025/linked/05/")
    ]


def keys_of(directory):
    raw = find_folders(str(directory), [], None)
    scan = ImageFolderConverter(raw.classes).scan
    batches = [refs for s in raw.sources for refs in scan(open_storage(s.uri), s)]
    return [ref.key for refs in batches for ref in refs]


@pytest.mark.slow
def test_so_do_those_in_a_bucket(gcs_server, bucket):
    for name in ("README", "cat/1.png", "cat/2024/", "cat/2024/05/1.png", "cat/.hidden/1.png"):
        gcs_server.write(bucket.removeprefix("gs://"), f"train/{name}", b"1")
    assert keys_of(bucket) == ["train/README", "train/cat/1.png", "train/cat/2024/05/1.png"]


@pytest.mark.parametrize("name", ["valid", "Val", "VALIDATION"])
def test_splits_are_known_by_all_their_usual_names(raw_image_folder, tmp_path, name):
    raw_image_folder.write("Training").write(name).write("TESTING")
    raw = find_folders(str(raw_image_folder.directory), [], None)
    expected = {"train": "Training", "validation": name, "test": "TESTING"}
    assert {s.split: s.uri.split("/")[-2] for s in raw.sources} == expected
    (tmp_path / "a.zip").write_bytes(zip_of({"Train/cat/1.jpg": b"", "Train/cat/2.jpg": b""}))
    assert [s.tag for s in find_folders(f"{tmp_path}/a.zip", [], None).sources] == ["Train"]


def test_classes_are_those_of_all_splits_whichever_are_converted(raw_image_folder, out):
    raw_image_folder.write("train")
    del raw_image_folder.files["cat"]
    raw_image_folder.write("test").convert(out, "--splits=test", "--max-bad-records=2")
    assert {r["image/class/label"] for r in single(records_of(out, "test"))} == {2, 3}
    raw_image_folder.convert(out, "--splits=train", "--max-bad-records=3")
    manifest = read_manifest(str(out))
    assert {split: entry.num_records for split, entry in manifest.splits.items()} == {
        "test": 16,
        "train": 24,
    }


def test_names_need_not_be_utf8_nor_ascii_but_those_of_classes_must_be_text(
    raw_image_folder, tmp_path, out
):
    raw_image_folder.files = {
        "Käse 🧀": dict(raw_image_folder.files["cat"]),
        "dog": raw_image_folder.files["dog"],
    }
    raw_image_folder.files["Käse 🧀"]["odd \udcff name.jpeg"] = raw_image_folder.files["dog"][
        "100.jpeg"
    ]
    raw_image_folder.write("train").convert(out, "--max-bad-records=2")
    odd = [
        r for r in single(records_of(out, "train")) if r["image/filename"] == b"odd \xff name.jpeg"
    ]
    assert [r["image/class/text"].decode() for r in odd] == ["Käse 🧀"]
    (raw_image_folder.directory / "train/odd \udcff class").mkdir()
    with pytest.raises(
        RawDataError, match=r"class folder 'odd \\udcff class': its name must be UTF-8 text"
    ):
        raw_image_folder.convert(tmp_path / "again")


def test_options_change_the_images_and_the_plan(raw_image_folder, out):
    flags = ("--max-bad-records=3", "--validation-fraction=0")
    raw_image_folder.write().convert(out, *flags)
    with pytest.raises(ConversionError, match="--overwrite"):
        raw_image_folder.convert(out, *flags, "--max-side=12")
    raw_image_folder.convert(out, *flags, "--max-side=12", "--overwrite")
    records = single(records_of(out, "train"))
    assert {max(r["image/width"], r["image/height"]) for r in records} == {12}
    assert read_manifest(str(out)).split("train").fixups["scaled_down"] == 24


def test_sizes_are_predicted_within_a_few_bytes_where_images_stay_as_they_are(raw_image_folder):
    raw = find_folders(str(raw_image_folder.write().directory), [], HeldOut(0))
    converter = ImageFolderConverter(raw.classes, HeldOut(0))
    for source in raw.sources:
        for refs in converter.scan(LocalStorage(), source):
            for ref, predicted in zip(refs, converter.record_bytes(refs), strict=True):
                if ref.key.endswith(".jpeg"):
                    data = (
                        raw_image_folder.directory / ref.key.removeprefix("train/")
                    ).read_bytes()
                    actual = len(
                        encode_example(converter.schema, converter.convert(ref, data).features)
                    )
                    assert abs(int(predicted) - actual) <= 12


WRONG = [
    ([], RawDataError, r"no folder of a split \(train, .*It has: cat, dog, grey eel\. .*--validation-fraction"),
    (["--validation-fraction=1"], OptionError, "--validation-fraction=1.0: must be at least 0 and below 1"),
    (["--validation-fraction=0", "--splits=test"], RawDataError, r"does not have the test split. It has: train\."),
    (["--max-side=0"], OptionError, "--max-side=0: must be at least 1"),
    (["--jpeg-quality=101"], OptionError, "--jpeg-quality=101: must be at least 1 and at most 100"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "error", "message"), WRONG, ids=lambda value: str(value)[:30])
def test_a_wrong_option_is_one_clear_error_and_writes_nothing(
    raw_image_folder, out, flags, error, message
):
    with pytest.raises(error, match=message):
        raw_image_folder.write().convert(out, *flags)
    assert not out.exists()


@pytest.mark.parametrize(
    ("folders", "fraction", "message"),
    [
        (["train/a", "val/a", "validation/a"], None, "has two folders for the validation split"),
        (["train/a", "val"], None, "val has no class folders in it. It has: nothing"),
        (["train/a", "test/a"], 0.1, r"has folders by split \(test, train\). Leave out --validation-fraction"),
        ([".git"], 0.1, "has no class folders in it"),
        (["train/two\nlines"], None, "its name must be UTF-8 text on one line"),
    ],
)  # fmt: skip
def test_a_layout_that_is_not_quite_right_is_one_clear_error(tmp_path, folders, fraction, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    with pytest.raises(RawDataError, match=message):
        find_folders(str(tmp_path), [], fraction and HeldOut(fraction))


def test_the_summary_counts_exif_rotations_and_animated_gifs(
    raw_image_folder, tmp_path, out, capsys
):
    exif = Image.Exif()
    exif[0x0112] = 6
    cats = raw_image_folder.files["cat"]
    cats |= {f"turned {i}.jpg": make_image(i, "JPEG", exif=exif) for i in range(3)}
    cats["still.gif"], cats["moving.gif"] = make_image(7, "GIF"), gif_of([0, 255])
    flags = ("--max-bad-records=3", "--validation-fraction=0")
    raw_image_folder.write().convert(out, *flags)
    said = [
        "in 3 of 29 records an EXIF rotation was not applied, and most readers ignore it; --apply-orientation turns "
        "such images upright.",
        "in 1 of 29 records only the first frame of an animated GIF was taken.",
    ]
    summary = json.loads((out / "_summary/train.json").read_text())
    assert summary["warnings"][:2] == said
    printed = capsys.readouterr().out
    assert all(f"warning: {line}\n" in printed for line in said)
    fixups = read_manifest(str(out)).split("train").fixups
    assert (fixups["gif_to_jpeg"], fixups["first_frame_only"]) == (2, 1)
    raw_image_folder.convert(tmp_path / "upright", *flags, "--apply-orientation")
    upright = read_manifest(str(tmp_path / "upright"))
    assert upright.split("train").fixups["turned_upright"] == 3
    assert upright.schema == replace(read_manifest(str(out)).schema, upright=True)
    assert "EXIF" not in capsys.readouterr().out


def gif_of(greys):
    buffer, frames = io.BytesIO(), [Image.new("L", (16, 12), grey) for grey in greys]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_bmp_tiff_and_avif_become_jpegs(raw_image_folder, out):
    picture = Image.linear_gradient("L").convert("RGB").resize((40, 30))
    for form, mode in (("BMP", "L"), ("TIFF", "CMYK"), ("AVIF", "RGB")):
        buffer = io.BytesIO()
        picture.convert(mode).save(buffer, form)
        raw_image_folder.files["cat"][f"odd.{form.lower()}"] = buffer.getvalue()
    raw_image_folder.write("train").convert(out, "--max-bad-records=3")
    records = single(records_of(out))
    odd = [record for record in records if record["image/filename"].startswith(b"odd.")]
    assert len(odd) == 3
    for record in odd:
        image = Image.open(io.BytesIO(record["image/encoded"]), formats=("JPEG",))
        assert image.size == (record["image/width"], record["image/height"]) == (40, 30)
        assert np.abs(np.asarray(image.convert("RGB"), int) - np.asarray(picture, int)).mean() < 3
    fixups = read_manifest(str(out)).split("train").fixups
    assert {f"{form}_to_jpeg": 1 for form in ("bmp", "tiff", "avif")}.items() <= fixups.items()


def test_an_archive_whose_only_class_has_tiffs_is_that_class(tmp_path):
    buffer = io.BytesIO()
    Image.new("L", (9, 8)).save(buffer, "TIFF")
    files = {"photos/cat/1.tif": buffer.getvalue(), "photos/cat/more/2.tif": b""}
    (tmp_path / "raw.zip").write_bytes(zip_of(files))
    assert find_folders(f"{tmp_path}/raw.zip", [], HeldOut(0.0)).classes == ("cat",)


def test_a_class_with_files_in_folders_only_is_not_empty(tmp_path):
    (tmp_path / "raw.zip").write_bytes(zip_of({"cat/more/1.jpg": b""}, folders=["dog/more"]))
    (note,) = find_folders(f"{tmp_path}/raw.zip", [], HeldOut(0.0)).notices
    assert "no files in one of its classes: 'dog'." in note


@pytest.mark.parametrize("split", ["train", "val"])
def test_two_class_folders_that_differ_in_normalization_only_are_refused(tmp_path, split):
    composed, decomposed = "K\u00e4se", "Ka\u0308se"
    for folder in (f"train/{composed}", f"{split}/{decomposed}", f"{split}/Kase"):
        (tmp_path / folder).mkdir(parents=True)
    message = (
        rf"{tmp_path} has class folders 'Ka\\u0308se' and 'K\\xe4se': their names differ only in "
        r"Unicode normalization \(NFC, NFD\)\. Rename one of them"
    )
    with pytest.raises(RawDataError, match=message):
        find_folders(str(tmp_path), [], None)
    (tmp_path / split / decomposed).rmdir()
    assert find_folders(str(tmp_path), [], None).classes == ("Kase", composed)


def test_an_empty_class_folder_is_named_and_stays_a_class(raw_image_folder, out, capsys):
    raw_image_folder.files |= {
        "eel": {},
        "auk": {".DS_Store": b"hidden", "desktop.ini": b"of Windows"},
    }
    flags = ("--max-bad-records=3", "--num-train-shards=1")
    raw_image_folder.write("train").convert(out, *flags)
    assert read_manifest(str(out)).labels.names == (
        "auk",
        "cat",
        "dog",
        "eel",
        "grey eel",
    )
    said = "split 'train' has no files in 2 of its classes: 'auk', 'eel'. Each folder is a class and keeps its number"
    assert f"warning: {said}" in capsys.readouterr().out
    raw_image_folder.convert(out, *flags, "--dry-run")
    assert f"warning: {said}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["labels.csv", "train.tsv", "a.jsonl"])
def test_a_table_among_the_images_is_named(raw_image_folder, tmp_path, out, capsys, name):
    raw = raw_image_folder.write().directory
    (raw / name).write_text("")
    flags = ("--max-bad-records=4", "--validation-fraction=0")
    raw_image_folder.convert(out, *flags)
    printed = capsys.readouterr().out
    assert (
        f"note: classes are the names of folders. If the rows of {raw}/{name} name the images, use"
        in printed
    )
    for folder in raw_image_folder.files:
        shutil.rmtree(raw / folder)
    for flags in ((), ("--validation-fraction=0",)):
        with pytest.raises(
            RawDataError, match=f"If the rows of .*{name} name the images, use python"
        ):
            raw_image_folder.convert(tmp_path / "other", *flags)
