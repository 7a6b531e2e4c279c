"""Data sets of JPEG and PNG files in folders, tables and tars keep their plan digests and bytes.

A conversion that was begun resumes only while they do: raise a converter's version where they have to change."""

import base64
import hashlib
import io
import tarfile

import pytest

from converters import image_folder_to_gcs, imagenet_to_gcs, table_to_gcs
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.usefixtures("without_beam")

JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0Hyc5PTgyPC4z"
    "NDL/wAALCAAIABABAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAB//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8ASAi//9k="
)
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGOIAgAAXABb2LRWWgAAAABJRU5ErkJggg=="
)
FILES = {
    f"{name}/{i}{suffix}": data + bytes(i)
    for name in ("cat", "grey eel")
    for i, (suffix, data) in enumerate(
        [(".jpg", JPEG), (".jpeg", JPEG), (".txt", b"no image"), (".JPG", JPEG)]
    )
}


def write(directory, files):
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


def tar_of(files):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def image_folders(raw):
    write(
        raw, {f"{split}/{name}": data for split in ("train", "val") for name, data in FILES.items()}
    )
    (raw / "train/no images").mkdir()
    return image_folder_to_gcs.main, ["--max-bad-records=2"]


def one_set_of_folders(raw):
    write(raw, {**FILES, "beside.txt": b"beside"})
    return image_folder_to_gcs.main, ["--validation-fraction=0.4", "--max-bad-records=3"]


def folders_with_a_png(raw):
    write(raw, {"train/cat/1.jpg": JPEG, "train/cat/2.png": PNG})
    return image_folder_to_gcs.main, ["--max-side=100", "--jpeg-quality=90"]


def a_table(raw):
    rows = "".join(f"{name},{name.split('/')[0]}\n" for name in FILES)
    write(raw, {**FILES, "train.csv": f"file,animal\n{rows}".encode()})
    return table_to_gcs.main, [
        "--image-column=file",
        "--label-column=animal",
        "--max-bad-records=2",
    ]


def a_table_of_several_labels(raw):
    rows = "".join(f"{name},{('a', 'a|bb', 'bb')[i % 3]}\n" for i, name in enumerate(FILES))
    write(raw, {**FILES, "train.csv": f"file,tags\n{rows}".encode()})
    flags = [
        "--image-column=file",
        "--labels-column=tags",
        "--label-separator=|",
        "--num-train-shards=3",
    ]
    return table_to_gcs.main, [*flags, "--max-bad-records=2"]


def a_table_of_numbers(raw):
    rows = "".join(f"{name},{i / 3},{i}\n" for i, name in enumerate(FILES))
    write(raw, {**FILES, "train.csv": f"file,x,y\n{rows}".encode()})
    return table_to_gcs.main, ["--image-column=file", "--target-columns=x,y", "--max-bad-records=2"]


def rows_of_all_kinds(raw):
    cells = [(i / 3, i * 2**40, "ab"[i % 2], f"text {i}", i % 3 == 0) for i in range(20)]
    rows = "".join(f"{','.join(map(str, row))}\n" for row in cells)
    write(raw, {"all.csv": f"x,n,class,text,truth\n{rows}".encode()})
    return table_to_gcs.main, ["--validation-fraction=0"]


def rows_without_keys(raw):
    main, _ = rows_of_all_kinds(raw)
    return main, ["--validation-fraction=0.3"]


def rows_with_keys(raw):
    main, _ = rows_of_all_kinds(raw)
    return main, ["--validation-fraction=0.3", "--key-column=text"]


def imagenet(raw):
    classes = {
        f"n0000000{i}.tar": tar_of({f"n0000000{i}_{j}.JPEG": JPEG + bytes(j) for j in range(3)})
        for i in (1, 2)
    }
    write(
        raw, {"ILSVRC2012_img_train.tar": tar_of(classes), "synsets.txt": b"n00000001\nn00000002\n"}
    )
    return imagenet_to_gcs.main, [f"--label-file={raw}/synsets.txt", "--splits=train"]


def imagenet_for_tfds(raw):
    main, flags = imagenet(raw)
    return main, [*flags, "--schema=tfds"]


# By layout: the plan digest of each split and the sha256 of all shards, which is None where an encoder has a say.
UNCHANGED = {
    image_folders: (
        {
            "train": "1cea89a56af31202e846ad4b610f05d5",
            "validation": "a5ae831a7cf70d6246be386cd7251d1f",
        },
        "74b14fe07c8eb032ad38d2fb97ef6ea98804b0b81fb95c187fc4b81ba10b25db",
    ),
    one_set_of_folders: (
        {
            "train": "5f651a9b3e5138d00cc1ba25c04409e4",
            "validation": "abd2ec38406c14e1f9a39f495ca7c0a8",
        },
        "7a91f6d73b377fe825eceb9fe9f8bc25fc4ec276b03245e0740727183d09d4f6",
    ),
    folders_with_a_png: ({"train": "9dbfe8975bc44522f4037ed4fde1b76d"}, None),
    a_table: (
        {"train": "3308b178a8e4ce32e2fefd5a8a2a4d6a"},
        "2322ea5dfad7ac4924a0df24664bd4cac826fe21c089b5d6f1dcd1ba5a242248",
    ),
    a_table_of_several_labels: (
        {"train": "8f2cb2491a7d1ebba99576b4e3975850"},
        "716171106c65e38db46e835eb4fa5cf755366d36e2473ba95594883f3b79847c",
    ),
    a_table_of_numbers: (
        {"train": "afdb9cfdea6daa06859f1b43fa77babe"},
        "1c7b5add184a55d9258c653fac20d9ee58e2c8e2beb3f83d9a883afc825b8a89",
    ),
    rows_of_all_kinds: (
        {"train": "46c913ad1686d617f417f17c5aff5e3d"},
        "16fce617146562d212f942f3f946d6829c1090801ab22b89c754af9cca440a13",
    ),
    rows_without_keys: (
        {
            "train": "aa7510d0a923b1ef2876eeabb0b52df9",
            "validation": "7865afaf77fac10847bfe3b962bddaad",
        },
        "d2e4a53aa04d1cac3fbea318efd00bd6d743ce5f3026245ca27cc74b0fa02cc5",
    ),
    rows_with_keys: (
        {
            "train": "134d8814a847df1bced73bba240418d3",
            "validation": "a20d0412478c348945fd20567cda4b55",
        },
        "9219dcb521a9f1b761afb79006a2d7a15cdfb59bc93bacede26e8cedac11902c",
    ),
    imagenet: (
        {"train": "3f8de7cd4aaa53b55a0863ff7845c2c1"},
        "23069907101b596dc3df4447dfb5b7669d9055d2b7f7acdafac218d004c0da21",
    ),
    imagenet_for_tfds: (
        {"train": "a3b17cb47ae06d35735ed0ec54cf2fb4"},
        "84298d0c532cc6065d7d3037e79c22657587c4ec35d81000e39b5a9327aab06e",
    ),
}


@pytest.mark.parametrize("write_raw", UNCHANGED, ids=lambda function: function.__name__)
def test_plans_and_shards_are_unchanged(tmp_path, out, write_raw):
    plans, shards = UNCHANGED[write_raw]
    main, flags = write_raw(tmp_path / "raw")
    main([f"--raw-data-dir={tmp_path / 'raw'}", f"--gcs-output-path={out}", *flags])
    (manifest,) = out.rglob("manifest.json")  # TFDS's schema is in a directory below
    written = b"".join(path.read_bytes() for path in sorted(manifest.parent.glob("*-of-*")))
    splits = read_manifest(str(manifest.parent)).splits
    assert {split: entry.plan_digest for split, entry in splits.items()} == plans
    assert shards in (None, hashlib.sha256(written).hexdigest())
