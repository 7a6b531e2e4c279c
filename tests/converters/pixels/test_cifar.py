"""CIFAR: both versions in every place they come in, every pixel and label, what is refused, the command line."""

import gzip
import io

import numpy as np
import pytest
from converted import ledger_of, records_of, single
from PIL import Image

from converters import cifar_to_gcs
from converters.pixels.cifar import find_cifar
from pipeline.errors import ConversionError, LabelError, OptionError, RawDataError
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")


def by_name(out, split):
    return {record["image/filename"].decode(): record for record in single(records_of(out, split))}


def pixels(record):
    return np.asarray(Image.open(io.BytesIO(record["image/encoded"]), formats=("PNG",)))


def expected(raw, split):
    """File name -> (labels, pixels [32, 32, 3]), of the good ones."""
    found = {}
    for file, rows in raw.batches.items():
        for number, row in enumerate(rows if ("test" in file) == (split == "test") else ()):
            labels, planes = row[: 1 + raw.coarse], row[1 + raw.coarse :].reshape(3, 32, 32)
            if labels[-1] < 100:
                name = f"{file.removesuffix('.bin')}_{number:07d}.png"
                found[name] = (labels.tolist(), np.stack([*planes], axis=-1))
    return found


def test_every_pixel_and_label_arrives_under_its_batch_and_number(raw_cifar, out):
    raw_cifar.write().convert(out, "--num-train-shards=3", "--max-bad-records=1")
    for split in ("train", "test"):
        records, raw = by_name(out, split), expected(raw_cifar, split)
        assert records.keys() == raw.keys()
        for name, (labels, image) in raw.items():
            np.testing.assert_array_equal(pixels(records[name]), image)
            assert records[name]["image/class/label"] == labels[-1]
            names = sorted(raw_cifar.names)[::-1]  # batches, or fine then coarse
            assert records[name]["image/class/text"].decode() == f"{names[0][:4]} {labels[-1]}"
            if raw_cifar.coarse:
                assert records[name]["image/class/coarse_label"] == labels[0]
                assert records[name]["image/class/coarse_text"].decode() == f"coar {labels[0]}"
    manifest = read_manifest(str(out))
    assert (manifest.name, manifest.labels.base) == (
        "cifar100" if raw_cifar.coarse else "cifar10",
        0,
    )
    assert len(manifest.labels.names) == (100 if raw_cifar.coarse else 10)


def test_a_record_is_read_as_the_cifar_page_describes(raw, out):
    # https://www.cs.toronto.edu/~kriz/cifar.html: <1 label><1024 red><1024 green><1024 blue>, rows first.
    green, blue = (bytes(divmod(i, 32)[part] for i in range(1024)) for part in range(2))
    record = b"\6" + b"\xff" * 1024 + green + blue
    (raw / "test_batch.bin").write_bytes(record)
    names = [
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    ]
    (raw / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    flags = [f"--raw-data-dir={raw}", f"--gcs-output-path={out}", "--splits=test"]
    cifar_to_gcs.main(flags)
    (found,) = by_name(out, "test").values()
    assert (found["image/class/label"], found["image/class/text"]) == (6, b"frog")
    assert pixels(found)[7, 9].tolist() == [255, 7, 9]
    assert (found["image/height"], found["image/width"], found["image/channels"]) == (32, 32, 3)


def test_the_archive_the_tar_the_folder_and_the_files_give_the_same_shards(
    raw_cifar, tmp_path, shard_digests
):
    raw_cifar.write_archive().convert(tmp_path / "gz", "--max-bad-records=1")
    assert not list((tmp_path / "gz").glob("_scratch/*"))
    (archive,) = raw_cifar.directory.iterdir()
    archive.with_suffix("").write_bytes(gzip.decompress(archive.read_bytes()))
    archive.unlink()
    raw_cifar.convert(tmp_path / "tar", "--max-bad-records=1")
    raw_cifar.write().convert(tmp_path / "folder", "--max-bad-records=1")
    raw_cifar.directory /= raw_cifar.folder
    raw_cifar.convert(tmp_path / "here", "--max-bad-records=1")
    gz, *others = (shard_digests(tmp_path / name) for name in ("gz", "tar", "folder", "here"))
    shards = {name for name in gz if "-of-" in name}
    assert all(
        {name: other[name] for name in shards} == {name: gz[name] for name in shards}
        for other in others
    )
    assert len(shards) == 2


def test_labels_that_are_no_class_are_listed(raw_cifar, out):
    if raw_cifar.coarse:
        raw_cifar.batches["train.bin"][2, 0] = 20
    with pytest.raises(ConversionError, match=r"split 'train': \d bad record"):
        raw_cifar.write().convert(out)
    assert ledger_of(out) == (
        {
            "train/train_0000001.png": "label 100; allowed are 0..99",
            "train/train_0000002.png": "a coarse label past the last, 19",
        }
        if raw_cifar.coarse
        else {"train/data_batch_1_0000001.png": "label 100; allowed are 0..9"}
    )


@pytest.mark.parametrize("change", [lambda d: d[:-1], lambda d: d + b"x", lambda d: b""])
def test_a_file_that_is_not_whole_records_is_named(raw_cifar, out, change):
    raw_cifar.write()
    (path,) = (raw_cifar.directory / raw_cifar.folder).glob("test*.bin")
    path.write_bytes(change(path.read_bytes()))
    size = 3072 + 1 + raw_cifar.coarse
    with pytest.raises(
        RawDataError,
        match=rf"{path.name} of .* it must be a file of complete records of {size} bytes",
    ):
        raw_cifar.convert(out)
    assert not out.exists()


@pytest.mark.parametrize(
    "name", ["cifar-10-python.tar.gz", "cifar-10-batches-py", "cifar-100-matlab.tar.gz", "meta"]
)
def test_the_python_and_matlab_versions_are_refused(raw, out, name):
    (raw / name).write_bytes(b"\x80\x04.")
    with pytest.raises(
        RawDataError, match=rf"has none of cifar-10.* the binary version of http.* It has: {name}"
    ):
        cifar_to_gcs.main([f"--raw-data-dir={raw}", f"--gcs-output-path={out}"])


def test_an_archive_by_the_right_name_with_other_things_inside_is_refused(raw_cifar, out):
    raw_cifar.batches = {"data_batch_1": raw_cifar.batches.popitem()[1]}
    with pytest.raises(
        RawDataError, match=r"has no data_batch_1.bin or test_batch.bin .*It has: .*data_batch_1"
    ):
        raw_cifar.write_archive().convert(out)


def remove_names(raw):
    raw.names.popitem()


def shorten_names(raw):
    raw.names = {name: text.rstrip().rpartition("\n")[0] for name, text in raw.names.items()}


def remove_test_batch(raw):
    raw.batches.popitem()


LAYOUTS = [
    (remove_names, LabelError, r"has no \w+(\.meta|_label_names)\.txt, the names of the \d+ classes"),
    (shorten_names, LabelError, r"has (99 class names, expected 100|9 class names, expected 10)\."),
    (remove_test_batch, RawDataError, r"does not have the test split\. It has: "),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "error", "message"), LAYOUTS)
def test_a_layout_that_is_not_quite_right_is_one_clear_error(raw_cifar, out, spoil, error, message):
    spoil(raw_cifar)
    with pytest.raises(error, match=message):
        raw_cifar.write().convert(out)
    assert not out.exists()


@pytest.mark.parametrize("raw_cifar", [False], indirect=True, ids=["cifar-10"])
def test_a_missing_batch_file_is_an_error(raw_cifar):
    del raw_cifar.batches["data_batch_3.bin"]
    raw = str(raw_cifar.write().directory)
    with pytest.raises(
        RawDataError, match=r"1 of 5 files of 'train' are missing: data_batch_3\.bin\. Unpack"
    ):
        find_cifar(raw, [], None)
    _, sources = find_cifar(raw, ["test"], None)
    assert [source.tag for source in sources] == ["test_batch.bin"]


def test_directories_with_no_or_both_cifars_and_dry_runs_of_an_archive_are_refused(
    raw_cifar, raw, out
):
    with pytest.raises(RawDataError, match=r"has none of cifar-10-batches-bin, .* It has: nothing"):
        raw_cifar.convert(out)
    with pytest.raises(
        OptionError, match=r"binary\.tar\.gz has to be uncompressed .* --dry-run writes nothing"
    ):
        raw_cifar.write_archive().convert(out, "--dry-run")
    raw_cifar.write()
    other = "cifar-10-binary.tar.gz" if raw_cifar.coarse else "cifar-100-binary.tar.gz"
    (raw_cifar.directory / other).write_bytes(b"")
    with pytest.raises(
        RawDataError, match=r"has cifar-10-\S+ and cifar-100-\S+\. Give a directory with only one"
    ):
        raw_cifar.convert(out)
