"""python -m pipeline.describe DIR: shows a converted dataset: schema, splits, shard sizes, labels, a few records.

Reads the manifest and a sample of the records, or all of them with --all. Works on a disk or gs://; needs neither
TensorFlow nor Beam."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.progress import track

from pipeline.describing.facts import SAMPLED_RECORDS
from pipeline.describing.page import dataset_page
from pipeline.describing.splits import split_facts
from pipeline.describing.terminal import print_description
from pipeline.errors import OptionError, StorageError, printable
from pipeline.pages.page import check_page, write_page
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.sizes import format_bytes
from pipeline.tokenizers import TextInfo
from pipeline.tools.command import Console, Parser, exit_with, say
from pipeline.tools.packed_text import find_text_info
from pipeline.tools.program import program

__all__ = ["EXAMPLES", "main"]

EXAMPLES = ("shards --all --samples=5", "shards --html=shards.html")

SAMPLES, PAGE_SAMPLES, MOST_PAGE_SAMPLES = 2, 24, 400


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the description, or writes it as a page. Raises InfeedError."""
    parser = Parser("pipeline.describe", __doc__, EXAMPLES, ("pipeline.verify", "pipeline.index"))
    parser.add_argument("directory", metavar="DIR", help="a converted dataset: the directory of manifest.json")
    parser.add_argument(
        "--all", action="store_true", help=f"look at all records, not at {SAMPLED_RECORDS} of each split"
    )
    told = f"number of records to show per split (default: {SAMPLES}, on a page {PAGE_SAMPLES})"
    parser.add_argument("--samples", type=int, help=told)
    parser.add_argument("--html", metavar="FILE", help="write a page, with pictures and charts, instead of printing")
    args = parser.parse_args(argv)
    on_page = args.html is not None
    samples = _checked_samples(args.samples, on_page)
    if on_page:
        check_page(args.html)
    manifest = read_manifest(args.directory)
    text = _text_info(manifest)
    if not on_page:
        print_description(manifest, text, samples, args.all, _tracked)
        return
    splits = [split_facts(manifest, split, text, samples, args.all, _tracked) for split in sorted(manifest.splits)]
    command = f"{program('pipeline.describe')} {shlex.join(sys.argv[1:] if argv is None else argv)}"
    size = write_page(args.html, dataset_page(manifest, splits, text, command))
    say(Console(), f"{args.html}: {format_bytes(size)}")


def _checked_samples(asked: int | None, on_page: bool) -> int:
    """The number of samples of each split. asked: None for the default."""
    samples = asked if asked is not None else PAGE_SAMPLES if on_page else SAMPLES
    if samples < 0 or (on_page and samples > MOST_PAGE_SAMPLES):
        most = f", and at most {MOST_PAGE_SAMPLES} on a page" if on_page else ""
        raise OptionError(f"--samples={samples}: must be at least 0{most}.")
    return samples


def _text_info(manifest: Manifest) -> TextInfo | None:
    try:
        return find_text_info(manifest)
    except (OptionError, StorageError) as e:  # the rest can be described all the same; verify reports it as damage
        Console(stderr=True).print(f"warning: {printable(str(e))}", markup=False, soft_wrap=True)
        return None


def _tracked(found: Iterable[Any], count: int) -> Iterable[Any]:
    console = Console(stderr=True)
    return track(found, "reading", count, console=console, disable=not console.is_terminal, transient=True)


if __name__ == "__main__":
    exit_with(main)
