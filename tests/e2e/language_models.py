"""char_lm and byte_lm against a trigram model, on chapters of the King James Bible that neither has seen.

    apt-get download bible-kjv bible-kjv-text
    for package in bible-kjv*.deb; do dpkg -x $package UNPACKED; done
    python tests/e2e/language_models.py UNPACKED DIR

The trigram model interpolates the frequencies of three, two and one tokens and chance, with the weights that fit a
tenth of the training rows best (EM). It sees what the models see: the tokens before, in the same segment."""

import argparse
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np

from pipeline.sources.open_dataset import open_dataset
from pipeline.tokenizers import read_text_info

MARGIN = 0.2  # bits per byte, the least by which each model must be better
CPU_SECONDS = 600  # the most that a training and its evaluation may take
TRAININGS = {
    "char_lm": ("characters", "--max-steps", 2000),
    "byte_lm": ("bytes", "--max-steps", 2000),
}


def write_chapters(unpacked: Path, raw: Path) -> None:
    """A file for each of the 1,189 chapters, with a line per verse."""
    program = [unpacked / "usr/bin/bible", "-l9999", "-p", unpacked / "usr/lib", "gen1:1-rev22:21"]
    text = subprocess.run(
        list(map(str, program)), check=True, capture_output=True, text=True
    ).stdout
    raw.mkdir(parents=True)
    title, *chapters = re.split(r"^((?:\d )?[A-Z][A-Za-z ]* \d+)\n\n", text, flags=re.MULTILINE)
    assert not title.strip(), title
    for name, verses in zip(chapters[::2], chapters[1::2], strict=True):
        lines = re.sub(r"^ *\d+ ", "", verses.strip(), flags=re.MULTILINE)
        (raw / f"{name.replace(' ', '_')}.txt").write_text(f"{lines}\n")


def predicted_tokens(shards: Path, split: str) -> tuple[np.ndarray, int]:
    """int64 [3, tokens]: each token that counts after the two before it, 0 where the segment begins; and the bytes."""
    found, num_bytes = [], 0
    for row in open_dataset(str(shards), split).examples(["tokens", "segment_ids", "num_bytes"]):
        tokens, segments = np.asarray(row["tokens"]), np.asarray(row["segment_ids"])
        places = np.flatnonzero((segments[1:] == segments[:-1]) & (segments[1:] > 0)) + 1
        second = np.where(
            (places >= 2) & (segments[places - 2] == segments[places]), tokens[places - 2], 0
        )
        found.append(np.stack([second, tokens[places - 1], tokens[places]]))
        num_bytes += int(row["num_bytes"])
    return np.concatenate(found, axis=1).astype(np.int64), num_bytes


def frequencies(seen: np.ndarray, asked: np.ndarray, size: int) -> np.ndarray:
    """float64 [4, tokens]: how probable chance, single tokens, pairs and triples of `seen` make each token asked."""
    (a, b, c), (x, y, z) = seen, asked
    triples = np.bincount((a * size + b) * size + c, minlength=size**3)
    pairs, single = np.bincount(b * size + c, minlength=size**2), np.bincount(c, minlength=size)

    def share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        return np.divide(part, whole, out=np.zeros(len(part)), where=whole > 0)

    before = (
        triples.reshape(-1, size).sum(axis=1)[x * size + y],
        pairs.reshape(-1, size).sum(axis=1)[y],
    )
    of_three, of_two = (
        share(triples[(x * size + y) * size + z], before[0]),
        share(pairs[y * size + z], before[1]),
    )
    return np.stack([np.full(len(z), 1 / size), single[z] / len(c), of_two, of_three])


def trigram_bits_per_byte(shards: Path) -> float:
    """Of the validation split."""
    size = read_text_info(str(shards)).tokenizer.vocabulary_size
    (train, _), (held_out, num_bytes) = (
        predicted_tokens(shards, split) for split in ("train", "validation")
    )
    tenth = train.shape[1] // 10
    each, weights = frequencies(train[:, tenth:], train[:, :tenth], size), np.full(4, 0.25)
    for _ in range(50):
        joint = weights[:, None] * each
        weights = (joint / joint.sum(axis=0)).mean(axis=1)
    probable = (weights[:, None] * frequencies(train, held_out, size)).sum(axis=0)
    return float(-np.log2(probable).sum() / num_bytes)


def run(*command: object) -> float:
    """One of a user's commands; its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", *map(str, command)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compare(recipe: str, raw: Path, directory: Path) -> None:
    """Exits with 1 unless the recipe beats the trigram model by MARGIN within CPU_SECONDS."""
    tokenizer, *flags = TRAININGS[recipe]
    shards, workdir = directory / f"{recipe}_shards", directory / recipe
    options = (f"--tokenizer={tokenizer}", "--sequence-length=128", "--validation-fraction=0.05")
    run("converters.text_to_gcs", f"--raw-data-dir={raw}", f"--output={shards}", *options)
    trigram = trigram_bits_per_byte(shards)
    where = ("--data-dir", shards, "--workdir", workdir)
    seconds = run("trainer", recipe, *where, *flags)
    result = json.loads((workdir / "eval_result.json").read_text())
    run("trainer", recipe, *where, "--mode", "sample", "--prompt", "And God ")
    print(
        f"{recipe}: {result['bits_per_byte']:.3f} bits per byte in {seconds:.0f} CPU seconds; trigrams {trigram:.3f}"
    )
    if not result["proven"] or result["bits_per_byte"] > trigram - MARGIN or seconds > CPU_SECONDS:
        sys.exit(
            f"{recipe} must be proven, better by {MARGIN} and take at most {CPU_SECONDS} CPU seconds"
        )


def main() -> None:
    """Compares both recipes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("unpacked", type=Path, help="where the two packages are unpacked")
    parser.add_argument("directory", type=Path, help="a directory to be made")
    parser.add_argument("--recipes", nargs="+", choices=TRAININGS, default=list(TRAININGS))
    args = parser.parse_args()
    write_chapters(args.unpacked, args.directory / "raw")
    for recipe in args.recipes:
        compare(recipe, args.directory / "raw", args.directory)


if __name__ == "__main__":
    main()
