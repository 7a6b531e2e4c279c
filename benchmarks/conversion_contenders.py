"""One contender of bench_conversion, in a process of its own: converts the train tar, then says what that took.

    python -m benchmarks.conversion_contenders NAME RAW_DIR OUTPUT_DIR

Each imports what it needs, and only then starts its clock; the whole process, imports and all, is measured from
outside. The last line is JSON: seconds, CPU seconds of the process and its finished children, records.
The peers' way of reading is the cheapest there is: byte ranges of the tar, found before the clock starts (`listed`)."""

import contextlib
import itertools
import json
import os
import resource
import runpy
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SHARD_BYTES = 100 * 10**6


class Image(NamedTuple):
    """One image: its place in the tar, and its class."""

    name: str
    offset: int
    size: int
    synset: str
    label: int


def listed(raw: Path) -> tuple[int, list[list[Image]]]:
    """The tar, open, and its images in order, cut into shards of 100 MB."""
    images, shards, size = json.loads((raw / "images.json").read_text()), [[]], 0
    for image in map(Image._make, images):
        if size > SHARD_BYTES:
            shards.append([])
            size = 0
        shards[-1].append(image)
        size += image.size
    return os.open(raw / "ILSVRC2012_img_train.tar", os.O_RDONLY), shards


def infeed(raw: Path, output: Path) -> Callable[[], int]:
    """`python -m converters.imagenet_to_gcs` itself: runpy is what -m is."""
    import apache_beam.runners.portability.fn_api_runner  # noqa: F401

    import beam_jobs.graph  # noqa: F401
    import converters.imagenet_to_gcs  # noqa: F401
    from pipeline.shards.manifest import read_manifest

    def run() -> int:
        sys.argv[1:] = [
            f"--raw-data-dir={raw}",
            f"--output={output}",
            "--splits=train",
            "--local-processes=1",
        ]
        del sys.modules["converters.imagenet_to_gcs"]  # -m runs it as __main__
        with contextlib.suppress(SystemExit):
            runpy.run_module("converters.imagenet_to_gcs", run_name="__main__", alter_sys=True)
        return read_manifest(str(output)).splits["train"].num_records

    return run


def bare(raw: Path, output: Path) -> Callable[[], int]:
    """pread, crc32c, frame, write, fsync: no framework, no order, no Example, no check."""
    import google_crc32c

    fd, shards = listed(raw)

    def masked(crc: int) -> int:
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    def run() -> int:
        for number, images in enumerate(shards):
            with (output / f"train-{number:05d}-of-{len(shards):05d}").open(
                "wb", buffering=1 << 20
            ) as file:
                for image in images:
                    data = os.pread(fd, image.size, image.offset)
                    length = struct.pack("<Q", len(data))
                    file.write(length + struct.pack("<I", masked(google_crc32c.value(length))))
                    file.write(data)
                    file.write(struct.pack("<I", masked(google_crc32c.value(data))))
                file.flush()
                os.fsync(file.fileno())
        return sum(map(len, shards))

    return run


def tfds(raw: Path, output: Path) -> Callable[[], int]:
    """TFDS's own imagenet2012, on the same tar."""
    import tensorflow_datasets

    tensorflow_datasets.disable_progress_bar()
    builder = tensorflow_datasets.builder("imagenet2012", data_dir=str(output))
    config = tensorflow_datasets.download.DownloadConfig(manual_dir=str(raw))

    def run() -> int:
        builder.download_and_prepare(download_config=config)
        return builder.info.splits["train"].num_examples

    return run


def mds(raw: Path, output: Path) -> Callable[[], int]:
    """MosaicML's MDSWriter: the JPEG's bytes, class and name, in shards of its own format; no checksums, by default."""
    from streaming import MDSWriter

    fd, shards = listed(raw)

    def run() -> int:
        columns = {"image": "bytes", "label": "int", "file_name": "str"}
        with MDSWriter(out=str(output), columns=columns, size_limit=SHARD_BYTES) as writer:
            for image in itertools.chain(*shards):
                data = os.pread(fd, image.size, image.offset)
                writer.write({"image": data, "label": image.label, "file_name": image.name})
        return sum(map(len, shards))

    return run


CONTENDERS = {
    "infeed": infeed,
    "bare-loop": bare,
    "tfds": tfds,
    "mds": mds,
}


def cpu_seconds() -> float:
    """Of this process and of those of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    """Runs one contender."""
    name, raw, output = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    sys.argv[1:] = []
    output.mkdir(parents=True)
    run = CONTENDERS[name](raw, output)
    begun, cpu_before = time.perf_counter(), cpu_seconds()
    records = run()
    seconds, cpu = time.perf_counter() - begun, cpu_seconds() - cpu_before
    print(json.dumps({"seconds": seconds, "cpu": cpu, "records": records}))


if __name__ == "__main__":
    main()
