"""What a conversion of image folders tells its user: rotated and animated images, empty classes, tables beside them."""

import io
import json
import shutil

import pytest
from PIL import Image
from raw_data.images import make_image

from pipeline.errors import RawDataError
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")


def test_the_summary_counts_exif_rotations_and_animated_gifs(raw_image_folder, tmp_path, capsys):
    exif = Image.Exif()
    exif[0x0112] = 6
    cats = raw_image_folder.files["cat"]
    cats |= {f"turned {i}.jpg": make_image(i, "JPEG", exif=exif) for i in range(3)}
    cats["still.gif"], cats["moving.gif"] = make_image(7, "GIF"), gif_of([0, 255])
    flags = ("--max-bad-records=3", "--validation-fraction=0")
    raw_image_folder.write().convert(tmp_path / "out", *flags)
    said = [
        "in 3 of 29 records an EXIF rotation was not applied, and most readers ignore it; --apply-orientation turns "
        "such images upright.",
        "in 1 of 29 records only the first frame of an animated GIF was taken.",
    ]
    summary = json.loads((tmp_path / "out/_summary/train.json").read_text())
    assert summary["warnings"][:2] == said
    printed = capsys.readouterr().out
    assert all(f"warning: {line}\n" in printed for line in said)
    fixups = read_manifest(str(tmp_path / "out")).split("train").fixups
    assert (fixups["gif_to_jpeg"], fixups["first_frame_only"]) == (2, 1)
    raw_image_folder.convert(tmp_path / "upright", *flags, "--apply-orientation")
    assert read_manifest(str(tmp_path / "upright")).split("train").fixups["turned_upright"] == 3
    assert "EXIF" not in capsys.readouterr().out


def gif_of(greys):
    buffer, frames = io.BytesIO(), [Image.new("L", (16, 12), grey) for grey in greys]
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


def test_an_empty_class_folder_is_named_and_stays_a_class(raw_image_folder, tmp_path, capsys):
    raw_image_folder.files |= {"eel": {}, "auk": {".DS_Store": b"hidden"}}
    flags = ("--max-bad-records=3", "--num-train-shards=1")
    raw_image_folder.write("train").convert(tmp_path / "out", *flags)
    assert read_manifest(str(tmp_path / "out")).labels.names == ("auk", "cat", "dog", "eel", "grey eel")
    said = "split 'train' has no files in 2 of its classes: 'auk', 'eel'. Each folder is a class and keeps its number"
    assert f"warning: {said}" in capsys.readouterr().out
    raw_image_folder.convert(tmp_path / "out", *flags, "--dry-run")
    assert f"warning: {said}" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["labels.csv", "train.tsv", "a.jsonl"])
def test_a_table_among_the_images_is_named(raw_image_folder, tmp_path, capsys, name):
    raw = raw_image_folder.write().directory
    (raw / name).write_text("")
    flags = ("--max-bad-records=4", "--validation-fraction=0")
    raw_image_folder.convert(tmp_path / "out", *flags)
    printed = capsys.readouterr().out
    assert f"note: classes are the names of folders. If the rows of {raw}/{name} name the images, use" in printed
    for folder in raw_image_folder.files:
        shutil.rmtree(raw / folder)
    for flags in ((), ("--validation-fraction=0",)):
        with pytest.raises(RawDataError, match=f"If the rows of .*{name} name the images, use python"):
            raw_image_folder.convert(tmp_path / "other", *flags)
