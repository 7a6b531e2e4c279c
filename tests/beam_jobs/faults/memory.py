"""Peak memory of conversions, by source and size: CI runs one row, .ci/sweep all.

Raw data are one image over and over. A new source is a row of ROWS: what writes so many bytes of it, and its command.
pytest has this folder on its path."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fake_gcs.server import Server
from PIL import Image

from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

MIB = 2**20
ROOT = Path(__file__).parents[3]
BUCKET = "memory"
IMAGE_BYTES = 110_000
CLASS_BYTES = 40 * 10**6

_MEASURE = """
import importlib, re, sys
import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions
if "gs://" in sys.argv[2]:
    import pipeline.storage.gcs
main = importlib.import_module(sys.argv[1]).main
def kib(field):  # not getrusage: its maximum survives exec, so it is that of the process that started this one
    return int(re.search(rf"{field}:\\s+(\\d+)", open("/proc/self/status").read())[1])
idle = kib("VmRSS")
main(sys.argv[2:])
print("peak over idle", (kib("VmHWM") - idle) * 1024)
"""


@dataclass(frozen=True)
class Row:
    """write: (directory, bytes) -> raw data there. flags: of the module, {raw} being where they are.

    gigabytes: what .ci/sweep runs. bound: MiB, of every one of them."""

    module: str
    write: Callable[[Path, int], None]
    flags: tuple[str, ...]
    gigabytes: tuple[float, ...]
    bound: int = 64
    in_bucket: bool = False


def noise_image() -> bytes:
    """A JPEG of noise, of IMAGE_BYTES: over nine tenths of them compress no further."""
    buffer = io.BytesIO()
    Image.effect_noise((400, 300), 80).convert("RGB").save(buffer, "JPEG", quality=92)
    assert IMAGE_BYTES * 0.9 < buffer.tell() <= IMAGE_BYTES
    return buffer.getvalue().ljust(IMAGE_BYTES, b"\0")


def plain_image() -> bytes:
    """A JPEG of nearly nothing but zeros after its end, of IMAGE_BYTES."""
    buffer = io.BytesIO()
    Image.new("RGB", (16, 16)).save(buffer, "JPEG")
    return buffer.getvalue().ljust(IMAGE_BYTES, b"\0")


def class_tar(image: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for number in range(CLASS_BYTES // len(image)):
            info = tarfile.TarInfo(f"{number}.JPEG")
            info.size = len(image)
            tar.addfile(info, io.BytesIO(image))
    return buffer.getvalue()


def synsets(num_bytes: int) -> list[str]:
    return [f"n{number:08d}" for number in range(max(1, num_bytes // CLASS_BYTES))]


def header(synset: str, size: int) -> bytes:
    info = tarfile.TarInfo(f"{synset}.tar")
    info.size = size
    return info.tobuf(tarfile.USTAR_FORMAT)


def write_tars(directory: Path, num_bytes: int) -> None:
    """A train tar of so many bytes, in classes of 40 MB."""
    data = class_tar(noise_image())
    with (directory / "ILSVRC2012_img_train.tar").open("wb") as file:
        for synset in synsets(num_bytes):
            file.write(header(synset, len(data)))
            file.write(data)
        file.write(bytes(2 * tarfile.BLOCKSIZE))
    (directory / "synsets.txt").write_text("\n".join(synsets(num_bytes)))


def write_compressed_tars(directory: Path, num_bytes: int) -> None:
    """The same, of zeros and compressed: a gzip file of many parts, one of them over and over."""

    def part(data: bytes) -> bytes:
        return zlib.compress(data, 1, 16 + zlib.MAX_WBITS)

    data = class_tar(plain_image())
    compressed = part(data)
    with (directory / "ILSVRC2012_img_train.tar.gz").open("wb") as file:
        for synset in synsets(num_bytes):
            file.write(part(header(synset, len(data))))
            file.write(compressed)
        file.write(part(bytes(2 * tarfile.BLOCKSIZE)))
    (directory / "synsets.txt").write_text("\n".join(synsets(num_bytes)))


def write_folders(directory: Path, num_bytes: int) -> None:
    """Folders of an image under many names."""
    first = directory / "first"
    first.write_bytes(noise_image())
    for synset in synsets(num_bytes):
        (directory / "raw" / synset).mkdir(parents=True)
        for number in range(CLASS_BYTES // IMAGE_BYTES):
            (directory / "raw" / synset / f"{number}.jpg").hardlink_to(first)


def write_table(directory: Path, num_bytes: int) -> None:
    """A table of an image under many names."""
    write_folders(directory, num_bytes)
    images = sorted((directory / "raw").rglob("*.jpg"))
    lines = (f"{path.relative_to(directory / 'raw')},{path.parent.name}\n" for path in images)
    (directory / "raw" / "train.csv").write_text("file,class\n" + "".join(lines))


def write_records(directory: Path, num_bytes: int) -> None:
    """A TFRecord file of one record over and over, as large as its image."""
    schema = Schema("test", {"image": Feature("bytes")})
    record = frame(encode_example(schema, {"image": noise_image()}))
    with (directory / "ours-train.tfrecord-00000-of-00001").open("wb") as file:
        for _ in range(num_bytes // len(record)):
            file.write(record)


TARS = (
    "converters.imagenet_to_gcs",
    write_tars,
    ("--raw-data-dir={raw}", "--label-file={raw}/synsets.txt"),
)
COMPRESSED = (TARS[0], write_compressed_tars, TARS[2])
FOLDERS = (
    "converters.image_folder_to_gcs",
    write_folders,
    ("--raw-data-dir={raw}/raw", "--validation-fraction=0"),
)
TABLE = (
    "converters.table_to_gcs",
    write_table,
    ("--raw-data-dir={raw}/raw", "--image-column=file", "--label-column=class"),
)
RECORDS = ("converters.tfrecord_to_gcs", write_records, ("--raw-data-dir={raw}",))
ROWS: Mapping[str, Row] = {
    "tars": Row(*TARS, (0.2, 1, 4)),
    "tars in a bucket": Row(*TARS, (0.2, 1), bound=160, in_bucket=True),
    "compressed tars": Row(*COMPRESSED, (0.2, 4)),
    "image folders": Row(*FOLDERS, (0.2, 1)),
    "csv of images": Row(*TABLE, (0.2, 1)),
    "TFRecord files": Row(*RECORDS, (0.2, 1)),
}


def peak(row: Row, gigabytes: float, scratch: Path, server: Server) -> int:
    """Bytes over what the process takes with all imports and nothing to do.

    Converts so much raw data in a process of its own, 100 MB a shard, and removes everything again."""
    raw = scratch / "raw"
    raw.mkdir(parents=True)
    try:
        row.write(raw, int(gigabytes * 10**9))
        places = (
            (f"gs://{BUCKET}/raw", f"gs://{BUCKET}/out")
            if row.in_bucket
            else (str(raw), f"{scratch}/out")
        )
        if row.in_bucket:
            for file in raw.iterdir():
                server.write(BUCKET, f"raw/{file.name}", file.read_bytes())
        return _convert(row, *places, server)
    finally:
        shutil.rmtree(scratch)
        for name in server.objects(BUCKET) if row.in_bucket else ():
            server.delete(BUCKET, name)


def _convert(row: Row, raw: str, out: str, server: Server) -> int:
    flags = [
        f"--gcs-output-path={out}",
        *(flag.format(raw=raw) for flag in row.flags),
        "--splits=train",
    ]
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, row.module, *flags],
        cwd=ROOT,
        env=os.environ | (server.env if row.in_bucket else {}),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "train: " in done.stdout, done.stdout
    return int(done.stdout.split()[-1])
