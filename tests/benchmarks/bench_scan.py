"""Scan and assign of as many references as ImageNet has: seconds and peak memory.

    python tests/benchmarks/bench_scan.py [--records 1300000]

The images are of 700 bytes, so that there is little else to do. Each command runs in a process of its own: the dry
run (scan and assign in threads, without Beam) and the whole conversion, gather and commit with it."""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from PIL import Image

CLASSES = 1000
RUN = """
import re, sys
from converters.imagenet_to_gcs import main
main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""


def class_tar(synset: str, jpeg: bytes, count: int) -> bytes:
    """A tar of `count` copies of an image."""
    padding = b"\0" * (-len(jpeg) % tarfile.BLOCKSIZE)
    members = []
    for i in range(count):
        info = tarfile.TarInfo(f"{synset}_{i}.JPEG")
        info.size = len(jpeg)
        members += [info.tobuf(tarfile.USTAR_FORMAT), jpeg, padding]
    return b"".join([*members, b"\0" * 2 * tarfile.BLOCKSIZE])


def write_raw(directory: Path, records: int) -> None:
    """ImageNet's train tar, with small images."""
    buffer = io.BytesIO()
    Image.effect_noise((16, 16), 80).convert("RGB").save(buffer, "JPEG", quality=80)
    synsets = [f"n{number:08d}" for number in range(CLASSES)]
    with tarfile.open(directory / "ILSVRC2012_img_train.tar", "w") as tar:
        for synset in synsets:
            data = class_tar(synset, buffer.getvalue(), records // CLASSES)
            info = tarfile.TarInfo(f"{synset}.tar")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    (directory / "synsets.txt").write_text("\n".join(synsets))


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_300_000)
    options = parser.parse_args()
    root = str(Path(__file__).parents[2])
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw"
        raw.mkdir()
        write_raw(raw, options.records)
        flags = [f"--raw_data_dir={raw}", f"--gcs_output_path={scratch}/out", f"--label_file={raw}/synsets.txt"]
        print("| command | seconds | peak MiB |\n| --- | --- | --- |")
        for name, more in (("dry run", ["--dry_run"]), ("conversion", [])):
            begun = time.perf_counter()
            command = [sys.executable, "-c", RUN, *flags, "--splits=train", *more]
            env = os.environ | {"PYTHONPATH": root}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
            seconds, peak = time.perf_counter() - begun, int(done.stdout.split()[-1]) / 1024
            print(f"| {name} | {seconds:.1f} | {peak:.0f} |", flush=True)


if __name__ == "__main__":
    main()
