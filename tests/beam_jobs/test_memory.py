"""Memory is a few records, not a shard and not a dataset: the peak is flat from 0.2 to 4 GB at 100 MB shards."""

import io
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from PIL import Image

MIB = 2**20
MEASURE = """
import re, sys
import apache_beam
from apache_beam.options.pipeline_options import PipelineOptions
from converters.imagenet_to_gcs import main
def kib(field):  # not getrusage: its maximum survives exec, so it is that of the process that started this one
    return int(re.search(rf"{field}:\\s+(\\d+)", open("/proc/self/status").read())[1])
idle = kib("VmRSS")
main(sys.argv[1:])
print("peak over idle", (kib("VmHWM") - idle) * 1024)
"""


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def class_tar(synset: str, jpeg: bytes, count: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for i in range(count):
            add(tar, f"{synset}_{i}.JPEG", jpeg)
    return buffer.getvalue()


def write_raw(directory: Path, num_bytes: int) -> None:
    """A train tar of so many bytes, in classes of 40 MB."""
    buffer = io.BytesIO()
    Image.effect_noise((400, 300), 80).convert("RGB").save(buffer, "JPEG", quality=95)
    jpeg = buffer.getvalue().ljust(110_000, b"\0")
    per_class = 40 * 10**6 // len(jpeg)
    synsets = [f"n{c:08d}" for c in range(max(1, num_bytes // (per_class * len(jpeg))))]
    with tarfile.open(directory / "ILSVRC2012_img_train.tar", "w") as tar:
        for synset in synsets:
            add(tar, f"{synset}.tar", class_tar(synset, jpeg, per_class))
    (directory / "synsets.txt").write_text("\n".join(synsets))


@pytest.mark.long
def test_the_peak_over_idle_does_not_grow_with_the_data(tmp_path, capsys):
    peaks = {}
    for gigabytes in (0.2, 1, 4):
        raw, out = tmp_path / "raw", tmp_path / "out"
        raw.mkdir()
        write_raw(raw, int(gigabytes * 10**9))
        flags = [
            f"--raw_data_dir={raw}",
            f"--gcs_output_path={out}",
            f"--label_file={raw}/synsets.txt",
            "--splits=train",
        ]
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *flags], capture_output=True, text=True, timeout=300, check=True
        )
        assert f"in {max(1, round(gigabytes * 10))} shards" in done.stdout
        peaks[gigabytes] = int(done.stdout.split()[-1])
        for directory in (raw, out):
            for path in sorted(directory.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            directory.rmdir()
    with capsys.disabled():
        print("\npeak memory over idle:", {f"{gb} GB": f"{peak / MIB:.0f} MiB" for gb, peak in peaks.items()}, end=" ")
    assert max(peaks.values()) <= 64 * MIB
