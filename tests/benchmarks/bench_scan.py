"""Scan and assign of as many references as ImageNet has: seconds and peak memory.

    python tests/benchmarks/bench_scan.py [--records 1300000] [--rounds 1] [--before CHECKOUT]

The images are of 700 bytes, so that there is little else to do. Each command runs in a process of its own: the dry
run (scan and assign in threads, without Beam) and the whole conversion, gather and commit with it. With --before those
of another checkout run after them, in every round. Printed are medians."""

import argparse
import io
import os
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

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


class Took(NamedTuple):
    """Of one process. cpu: of it and of all that it waited for."""

    cpu: float
    wall: float
    peak: float  # MiB


def run(root: Path, flags: list[str]) -> Took:
    """One command of the checkout at `root`."""
    begun, before = time.perf_counter(), os.times()
    env = os.environ | {"PYTHONPATH": str(root)}
    command = [sys.executable, "-c", RUN, *flags]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env, cwd=root)
    wall, after = time.perf_counter() - begun, os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return Took(cpu, wall, int(done.stdout.split()[-1]) / 1024)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_300_000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--before", type=Path, help="another checkout of infeed, to compare with")
    options = parser.parse_args()
    roots = {"": Path(__file__).resolve().parents[2]} | ({"before: ": options.before} if options.before else {})
    commands = {"dry run": ["--dry_run"], "conversion": []}
    took: dict[str, list[Took]] = {f"{which}{name}": [] for name in commands for which in roots}
    with tempfile.TemporaryDirectory() as scratch:
        raw = Path(scratch) / "raw"
        raw.mkdir()
        write_raw(raw, options.records)
        flags = [f"--raw_data_dir={raw}", f"--gcs_output_path={scratch}/out", f"--label_file={raw}/synsets.txt"]
        for number in range(options.rounds):
            for name, more in commands.items():
                for which, root in roots.items():
                    took[f"{which}{name}"].append(found := run(root, [*flags, "--splits=train", *more]))
                    print(f"round {number + 1}: {which}{name}: {found.cpu:.1f} CPU s", file=sys.stderr, flush=True)
                    shutil.rmtree(f"{scratch}/out", ignore_errors=True)
    print("| command | CPU s | wall s | peak MiB |\n| --- | --- | --- | --- |")
    for name, rounds in took.items():
        cpu, wall, peak = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"| {name} | {cpu:.1f} | {wall:.1f} | {peak:.0f} |")
    if options.before:
        for name in commands:
            pairs = zip(took[name], took[f"before: {name}"], strict=True)
            ratios = [now.cpu / then.cpu for now, then in pairs]
            print(f"CPU time over before, {name}: {', '.join(f'{ratio:.3f}' for ratio in sorted(ratios))}")


if __name__ == "__main__":
    main()
