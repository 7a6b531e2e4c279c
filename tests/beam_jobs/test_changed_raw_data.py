"""Raw data that changed, between runs or under way, are never mixed with the old: one line names the first change."""

import os
import re
import shutil

import pytest
from raw_data.changing import KINDS, CompressedTars, Folders, ImagesOfATable, other_bytes

from beam_jobs import stages
from pipeline.errors import ConversionError, InfeedError, RawDataError
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.fixture(params=KINDS)
def data(request, raw_image_folder, raw_tables):
    kind = KINDS[request.param]
    return kind(raw_tables if kind is ImagesOfATable else raw_image_folder)


def unfinish(out, keep):
    """What a kill would have left: the shards of these numbers."""
    (out / "manifest.json").unlink()
    for path in out.glob("*-of-00003"):
        if not any(path.name.endswith(f"-{shard:05d}-of-00003") for shard in keep):
            path.unlink()
            (out / f"_shards/{path.name}.json").unlink()


def refused(data, out, *flags):
    with pytest.raises(InfeedError) as error:
        data.raw.convert(out, *data.flags, *flags)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_run_that_finds_its_raw_data_changed_names_the_file_and_writes_nothing(
    data, tmp_path, shard_digests
):
    out = tmp_path / "out"
    data.raw.convert(out, *data.flags)
    good = shard_digests(out)
    data.change()
    ways = "(give another directory, or replace the split with --overwrite|Replace the split with --overwrite, give)"
    assert re.search(f"{re.escape(str(data.changed()))} has changed.*{ways}", refused(data, out))
    unfinish(out, keep=[0, 1, 2])
    assert str(data.changed()) in refused(data, out)
    assert {name: good[name] for name in shard_digests(out)} == shard_digests(out)


@pytest.mark.parametrize("data", ["folders", "a .tar.gz"], indirect=True)
def test_copied_raw_data_with_new_times_resume_after_verify_existing(data, tmp_path, shard_digests):
    out = tmp_path / "out"
    data.raw.convert(out, *data.flags)
    good = shard_digests(out)
    unfinish(out, keep=[1, 2])
    shutil.move(data.raw.directory, tmp_path / "old")
    shutil.copytree(tmp_path / "old", data.raw.directory)
    assert "--verify-existing" in refused(data, out)
    data.raw.convert(out, *data.flags, "--verify-existing")
    assert shard_digests(out) == good
    inodes = {path.name: path.stat().st_ino for path in out.glob("_shards/*")}
    data.raw.convert(out, *data.flags)
    assert {path.name: path.stat().st_ino for path in out.glob("_shards/*")} == inodes


@pytest.mark.parametrize("data", ["a tar"], indirect=True)
def test_other_bytes_with_old_times_are_found_by_verify_existing(
    data, tmp_path, monkeypatch, shard_digests
):
    out = tmp_path / "out"
    monkeypatch.setattr("pipeline.storage.local._stamp", lambda _: 1)
    data.raw.convert(out, *data.flags)
    data.change()
    data.raw.convert(out, *data.flags)  # as README says: stamps see nothing here
    message = refused(data, out, "--verify-existing")
    assert f"{data.changed()} has other bytes than" in message
    assert "--overwrite --verify-existing" in message
    data.raw.convert(out, *data.flags, "--overwrite", "--verify-existing")
    data.raw.convert(tmp_path / "fresh", *data.flags)
    assert shard_digests(out) == shard_digests(tmp_path / "fresh")


def test_a_change_that_concerns_no_finished_shard_is_converted(
    raw_image_folder, tmp_path, shard_digests
):
    data, out = Folders(raw_image_folder), tmp_path / "out"
    data.raw.convert(out, *data.flags)
    concerned = next(
        s for s in range(3) if b"100.jpeg" in (out / f"train-{s:05d}-of-00003").read_bytes()
    )
    others = sorted({0, 1, 2} - {concerned})
    unfinish(out, keep=others)
    kept = {path.name: path.stat().st_ino for path in out.glob("train-*")}
    data.change()
    data.raw.convert(out, *data.flags)
    data.raw.convert(tmp_path / "fresh", *data.flags)
    assert shard_digests(out) == shard_digests(tmp_path / "fresh")
    assert {name: (out / name).stat().st_ino for name in kept} == kept


@pytest.mark.parametrize("flags", [(), ("--verify-existing",)], ids=["same version", "copy"])
def test_shards_of_changed_raw_data_are_rewritten_after_the_old_data_are_restored(
    raw_image_folder, tmp_path, shard_digests, monkeypatch, flags
):
    """A run with --verify-existing writes shards of the new data before another one finds the old."""
    if not flags:  # as in a bucket, where what is put back has the version it had
        monkeypatch.setattr("pipeline.storage.local._stamp", lambda found: found.st_mtime_ns)
    data, out = Folders(raw_image_folder), tmp_path / "out"
    data.raw.convert(out, *data.flags)
    good = shard_digests(out)
    unfinish(out, keep=[2])
    files = list(data.raw.directory.rglob("*.jpeg"))
    kept = tmp_path / "kept"
    kept.mkdir()
    for number, path in enumerate(files):
        path.rename(kept / f"{number}")
        path.write_bytes(other_bytes((kept / f"{number}").read_bytes()))
    assert "has other bytes than" in refused(data, out, "--verify-existing")
    assert len(list(out.glob("train-*"))) > 1
    for number, path in enumerate(files):
        shutil.move(kept / f"{number}", path)
    if flags:
        assert str(data.raw.directory) in refused(data, out)
    data.raw.convert(out, *data.flags, *flags)
    assert shard_digests(out) == good


def test_changed_sizes_and_added_or_removed_raw_files_are_named(raw_image_folder, tmp_path):
    data, out = Folders(raw_image_folder), tmp_path / "out"
    data.raw.convert(out, *data.flags)
    image = data.raw.directory / "train/cat/0.jpeg"
    whole = image.read_bytes()
    image.write_bytes(whole + b"\0")
    assert f"In the raw data, {image} has changed" in refused(data, out)
    image.unlink()
    assert "In the raw data, 1 of 27 records is gone." in refused(data, out)
    image.write_bytes(whole)
    (image.parent / "new.jpeg").write_bytes(whole)
    message = refused(data, out, "--verify-existing")
    assert f"{image.parent / 'new.jpeg'} is new" in message or f"{image} has changed" in message


@pytest.mark.parametrize(
    ("fraction", "text"), [(0.6, r"\d+ of \d+ records are gone from"), (0.1, r"jpeg is new in")]
)
def test_another_validation_fraction_is_told_apart_from_changed_raw_data(
    raw_image_folder, tmp_path, fraction, text
):
    raw_image_folder.write()
    raw_image_folder.convert(tmp_path / "out", "--max-bad-records=9", "--validation-fraction=0.3")
    told = rf"In the raw data, .*{text} this split, as with another --validation-fraction\."
    with pytest.raises(ConversionError, match=told):
        raw_image_folder.convert(
            tmp_path / "out", "--max-bad-records=9", f"--validation-fraction={fraction}"
        )


@pytest.mark.parametrize("kind", ["a zip", "a table's"])
def test_raw_data_of_the_same_size_that_change_under_way_are_named(
    kind, raw_image_folder, raw_tables, tmp_path, monkeypatch
):
    data = KINDS[kind](raw_tables if kind == "a table's" else raw_image_folder)
    write_shard = stages.write_shard

    def changed_first(*args):
        data.change()
        return write_shard(*args)

    monkeypatch.setattr(stages, "write_shard", changed_first)
    message = f"{data.changed()} (was written again|has .* when it was)"
    with pytest.raises((RawDataError, ConversionError), match=message):
        data.raw.convert(tmp_path / "out", *data.flags)
    assert not (tmp_path / "out/manifest.json").exists()


def test_a_compressed_file_that_was_uncompressed_again_is_the_same(
    raw_image_folder, tmp_path, shard_digests
):
    data, out = CompressedTars(raw_image_folder), tmp_path / "out"
    data.raw.convert(out, *data.flags)
    good = shard_digests(out)
    assert not list(out.glob("_scratch/*"))
    unfinish(out, keep=[0])
    data.raw.convert(out, *data.flags)
    assert shard_digests(out) == good


def test_a_stamp_depends_on_file_times_but_its_text_only_on_the_size(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"data")
    storage = LocalStorage()
    first = storage.stat(str(path))
    assert storage.list(str(tmp_path)) == {"file": first}
    os.utime(path, (0, 0))
    second = storage.stat(str(path))
    assert first.stamp != second.stamp
    assert not first.agrees_with(second)
    assert str(first) == str(second) == "4 bytes"
