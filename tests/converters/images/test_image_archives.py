"""Class folders in tars and zips, read in place: the shards of what they unpack to."""

import functools
import os
import tarfile
import zipfile

import pytest
from converted import ledger_of
from raw_data.archives import files_below, folders_below, streamed_zip_of, tar_of, zip_of
from raw_data.folders import RawImageFolder

from converters import image_folder_to_gcs
from pipeline.errors import OptionError, RawDataError
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")

SHARDS = ("--max-bad-records=20", "--num-train-shards=3")


@pytest.fixture(autouse=True)
def _without_fsync(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def convert(raw, out, *flags):
    image_folder_to_gcs.main([f"--raw-data-dir={raw}", f"--gcs-output-path={out}", *SHARDS, *flags])


def shards_of(digests, out):
    """Shards and indexes; the manifest also counts raw files."""
    return {name: digest for name, digest in digests(out).items() if name != "manifest.json"}


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory):
    """Folders by split, with an empty class, odd names, and everything that is passed over or rejected."""
    raw = (
        RawImageFolder(tmp_path_factory.mktemp("unpacked") / "raw", images=4)
        .write("train")
        .write("val")
        .directory
    )
    train = raw / "train"
    (train / "empty").mkdir()
    (train / "Käse").mkdir()
    files = {
        "Käse/ü.jpeg": (train / "cat/0.jpeg").read_bytes(),
        f"cat/{'long ' * 18}.jpeg": (train / "dog/100.jpeg").read_bytes(),
        **{
            f"cat/{place}/0.jpeg": (train / "cat/0.jpeg").read_bytes()
            for place in ("more", "more/of/the same")
        },
        "cat/more/.thumbs/1.jpeg": b"hidden",
        # Bytes after the end mark are allowed. Deflated, they are nothing: shards are cut by what they are unpacked.
        **{
            f"dog/{i}.jpg": (train / "dog/100.jpeg").read_bytes().ljust(3000 * i, b"\0")
            for i in range(1, 5)
        },
        "cat/empty.png": b"",
        "README.md": b"beside the classes",
        ".git/config": b"hidden",
        "cat/.thumbs/1.jpeg": b"hidden",
        "__MACOSX/cat/._0.jpeg": b"of a Mac",
    }
    for name, data in files.items():
        (train / name).parent.mkdir(parents=True, exist_ok=True)
        (train / name).write_bytes(data)
    return raw


@pytest.fixture(scope="module")
def expected(unpacked, tmp_path_factory, shard_digests):
    """expected(*flags): the shards and the ledger of the unpacked folders."""

    @functools.cache
    def converted(*flags):
        out = tmp_path_factory.mktemp("expected")
        convert(unpacked / "train" if flags else unpacked, out, *flags)
        return shards_of(shard_digests, out), ledger_of(out)

    return converted


PACK = {
    ".zip": zip_of,
    "stored .zip": functools.partial(zip_of, method=zipfile.ZIP_STORED),
    "streamed .zip": lambda files, folders: streamed_zip_of(
        {**dict.fromkeys(folders, b""), **files}
    ),
    "GNU .tar": tar_of,
    "pax .tar": functools.partial(tar_of, form=tarfile.PAX_FORMAT),
    ".tgz": functools.partial(tar_of, mode="w:gz"),
    ".tar.bz2": functools.partial(tar_of, mode="w:bz2"),
}


def packed(kind, directory, top=""):
    files = {f"{top}{name}": data for name, data in files_below(directory).items()}
    return PACK[kind](
        files, folders=[top] * bool(top) + [f"{top}{name}" for name in folders_below(directory)]
    )


@pytest.mark.parametrize("kind", PACK)
def test_an_archive_of_each_split_has_the_shards_of_its_folders(
    unpacked, expected, raw, tmp_path, out, shard_digests, kind
):
    suffix = kind.split(" ")[-1]
    # zipped inside of the folder, and the folder itself
    for split, top in (("train", ""), ("val", "val/")):
        (tmp_path / f"raw/{split}{suffix}").write_bytes(packed(kind, unpacked / split, top))
    convert(raw, out)
    assert (shards_of(shard_digests, out), ledger_of(out)) == expected()
    assert read_manifest(str(out)).labels.names == (
        "Käse",
        "cat",
        "dog",
        "empty",
        "grey eel",
    )
    assert not list(out.glob("_scratch/*"))


@pytest.mark.parametrize(
    ("kind", "top", "named"),
    [
        ("stored .zip", "", True),
        ("stored .zip", "a/b/", False),
        ("GNU .tar", "./", False),
        ("GNU .tar", "data/", True),
    ],
)
def test_one_archive_of_all_splits_has_their_shards(
    unpacked, expected, tmp_path, out, shard_digests, kind, top, named
):
    archive = tmp_path / f"raw/images{kind.split(' ')[-1]}"
    archive.parent.mkdir()
    archive.write_bytes(packed(kind, unpacked, top))
    convert(archive if named else archive.parent, out)
    assert (shards_of(shard_digests, out), ledger_of(out)) == expected()


@pytest.mark.parametrize("top", ["", "my images/"])
def test_an_archive_of_class_folders_is_split_like_the_folders(
    unpacked, expected, tmp_path, out, shard_digests, top
):
    (tmp_path / "images.zip").write_bytes(packed(".zip", unpacked / "train", top))
    convert(tmp_path / "images.zip", out, "--validation-fraction=0.3")
    found = shards_of(shard_digests, out), ledger_of(out)
    assert found == expected("--validation-fraction=0.3")


def test_a_folder_is_read_and_the_archive_it_was_unpacked_from_is_named(unpacked, raw, out, capsys):
    (raw / "train.zip").write_bytes(b"no zip")
    (raw / "train").symlink_to(unpacked / "train")
    convert(raw, out, "--dry-run")
    assert (
        f"note: {raw}/train.zip is not read: {raw}/train is the train split."
        in capsys.readouterr().out
    )


def test_a_compressed_tar_is_refused_by_a_dry_run_which_writes_nothing(raw, out):
    (raw / "train.tgz").write_bytes(tar_of({"cat/1.jpg": b"x"}, mode="w:gz"))
    with pytest.raises(
        OptionError, match=r"train\.tgz has to be uncompressed .* --dry-run writes nothing"
    ):
        convert(raw, out, "--dry-run")
    assert not out.exists()


FILES = {"cat/1.jpg": b"1" * 500, "dog/2.jpg": b"2" * 500}
BY_SPLIT = {f"train/{name}": data for name, data in FILES.items()}
WRONG = [
    ("train.zip", zip_of(FILES)[:-30], r"train\.zip cannot be read as a zip: it has no central directory at its end"),
    ("train.zip", zip_of(FILES)[100:], r"train\.zip cannot be read as a zip: it is 100 bytes shorter than"),
    ("train.zip", b"", r"train\.zip cannot be read as a zip: .* It is damaged, or was not fully copied"),
    ("train.tar", tar_of(FILES)[:1500], r"train\.tar breaks off as a tar: .*not fully copied"),
    ("train.tar.gz", tar_of(FILES, mode="w:gz")[:-20], r"train\.tar\.gz is truncated or damaged"),
    ("train.tar.bz2", tar_of(FILES, mode="w:bz2")[:-20], r"train\.tar\.bz2 is truncated or damaged"),
    ("train.zip", zip_of({**FILES, "../x.jpg": b"x"}), r"train\.zip has a member '\.\./x\.jpg', which leads out of"),
    ("train.tar", tar_of({**FILES, "cat/../../x": b"x"}), r"has a member 'cat/\.\./\.\./x', which leads out of"),
    ("train.tar", tar_of({**FILES, "/etc/passwd": b"x"}), r"has a member '/etc/passwd', which leads out of"),
    ("train.zip", zip_of(FILES, zipfile.ZIP_LZMA), r"train\.zip has member 'cat/1\.jpg' with compression method 14"),
    ("train.7z", b"7z", r"train\.7z is in a format that cannot be read in place; \.zip, \.tar, \.tgz, \.tar\.gz, \.tar\.bz2, \.tar\.zst can"),
    ("train.zip", zip_of({"1.jpg": b"x"}), r"train\.zip has no class folders in it\. It has: 1\.jpg"),
    ("images.zip", zip_of(FILES), r"no folder of a split .*It has: cat, dog\. .*give --validation-fraction"),
    ("all.zip", zip_of({"train.zip": b"", "val.tar": b""}), r"no folder of a split .*It has: train\.zip, val\.tar"),
    ("images.zip", zip_of({"val/a/1": b"x", "validation/a/1": b"x"}), "has two folders for the validation split"),
    ("train.zip", zip_of({"two\nlines/1.jpg": b"x"}), "its name must be UTF-8 text on one line"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "data", "message"), WRONG, ids=range(len(WRONG)))
def test_an_archive_that_is_not_quite_right_is_one_clear_error(raw, out, name, data, message):
    (raw / name).write_bytes(data)
    with pytest.raises(RawDataError, match=message):
        convert(raw, out)
    assert not list(out.glob("**/*-of-*"))


def test_options_that_do_not_fit_an_archive_are_one_clear_error(raw, tmp_path, out):
    (tmp_path / "a.zip").write_bytes(zip_of(BY_SPLIT))
    with pytest.raises(
        RawDataError,
        match=r"a\.zip has folders by split \(train\)\. Leave out --validation-fraction",
    ):
        convert(tmp_path / "a.zip", out, "--validation-fraction=0.1")
    (raw / "val.zip").write_bytes(zip_of(FILES))
    (raw / "validation.tar").write_bytes(tar_of(FILES))
    with pytest.raises(RawDataError, match="has two archives for the validation split"):
        convert(raw, out)
    for name in ("val.zip", "validation.tar"):
        (raw / name).unlink()
    for name in ("a.zip", "b.zip"):  # neither of which is all of the data
        (raw / name).write_bytes(zip_of(BY_SPLIT))
    with pytest.raises(RawDataError, match=r"no folder of a split"):
        convert(raw, out)


def test_a_member_whose_bytes_are_damaged_is_listed_and_the_others_arrive(unpacked, tmp_path, out):
    files = {f"train/{name}": data for name, data in files_below(unpacked / "train").items()}
    data, jpeg = bytearray(zip_of(files, zipfile.ZIP_STORED)), files["train/grey eel/200.jpeg"]
    data[bytes(data).index(jpeg) + len(jpeg) // 2] ^= 1
    (tmp_path / "a.zip").write_bytes(data)
    convert(tmp_path / "a.zip", out)
    assert "another size or checksum" in ledger_of(out)["train/grey eel/200.jpeg"]
