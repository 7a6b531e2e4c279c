"""A classification of real photographs, from raw folders to an exact evaluation: which photograph is a tile cut out of?

    apt-get download mate-backgrounds plasma-workspace-wallpapers
    for package in *.deb; do dpkg -x "$package" PHOTOS; done
    python tests/e2e/photograph_classes.py PHOTOS DIR --steps 600 --at_least 0.85

Photographs are cut into tiles that do not overlap; every fifth is held out. Then a user's commands: class folders
become shards, the recipe `images` trains with augmentation on host and device, and evaluates what was held out."""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from tiles import tiles

AUGMENTED = ["--color-jitter", "0.3", "--cutmix", "1.0", "--label-smoothing", "0.1"]


def write_tiles(packages: Path, raw: Path) -> int:
    """Class folders below raw/train and raw/val; how many classes."""
    number = -1
    for number, row, column, tile in tiles(packages):
        folder = raw / ("val" if (3 * row + column) % 5 == 0 else "train") / f"photo{number:02d}"
        folder.mkdir(parents=True, exist_ok=True)
        tile.save(folder / f"{row}_{column}.jpg", quality=92)
    return number + 1


def run(*command: str | Path) -> None:
    """One of a user's commands."""
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)


def main() -> None:
    """Exit code 1 unless the evaluation is exact and as good as asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path, help="where the packages were unpacked")
    parser.add_argument("directory", type=Path, help="a directory to be made")
    parser.add_argument("--steps", default="600")
    parser.add_argument("--classes", type=int, default=20, help="how many there must be at least")
    parser.add_argument(
        "--at_least", type=float, default=0.85, help="the accuracy that the evaluation must reach"
    )
    args = parser.parse_args()
    begun = time.monotonic()
    classes = write_tiles(args.photos, args.directory / "raw")
    if classes < args.classes:
        wanted = f"{args.classes} are wanted. See --help for their packages."
        sys.exit(f"{args.photos} has {classes} photographs; {wanted}")
    shards, workdir = args.directory / "shards", args.directory / "model"
    raw = ("--raw-data-dir", args.directory / "raw", "--gcs-output-path", shards)
    run("converters.image_folder_to_gcs", *raw, "--target-shard-bytes", "4MB")
    where = ("--data-dir", shards, "--workdir", workdir)
    run("trainer", "images", *where, "--max-steps", args.steps, *AUGMENTED)
    result = json.loads((workdir / "eval_result.json").read_text())
    print(f"{classes} photographs, {result['accuracy']:.1%} of {result['records']} held-out tiles are told apart, in "
          f"{time.monotonic() - begun:.0f} s; by chance it would be {1 / classes:.1%}")  # fmt: skip
    if not result["proven"] or result["accuracy"] < args.at_least:
        sys.exit(f"wanted: {args.at_least:.1%}, proven exact; found: {result}")


if __name__ == "__main__":
    main()
