"""infeed describe DIR: shows a converted dataset: schema, splits, shard sizes, labels, a few
records.

Reads the manifest and the records: a sample of them if a split is large or has no labels, or all
with --all. Works on a disk or in a bucket; needs neither TensorFlow nor Beam."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import UnidentifiedImageError
from rich.console import Group
from rich.table import Table
from rich.text import Text

from pipeline.commands import record_facts as facts
from pipeline.commands.dataset_facts import (
    FEATURES,
    SPLITS,
    TOTALS,
    LabelCounts,
    feature_rows,
    find_text_info,
    shard_sizes,
    split_rows,
    text_totals,
)
from pipeline.commands.dataset_page import dataset_page
from pipeline.commands.split_facts import SplitFacts, split_facts
from pipeline.console.commands import program
from pipeline.console.console import Console, say, table
from pipeline.console.parser import FACTS, Parser, exit_with
from pipeline.errors import CorruptRecordError, OptionError, SchemaError, StorageError
from pipeline.orders.defaults import Sizes, plan_records, training_bytes
from pipeline.orders.order import MAX_RECORDS
from pipeline.pages.page import check_page, write_page
from pipeline.pages.shown_records import item_text, label_text, shortened
from pipeline.raw.jpeg import UNREADABLE, open_image
from pipeline.shards.copies import counted_copies, found_copies
from pipeline.shards.example_decoding import decode_example
from pipeline.shards.manifest import Manifest, read_manifest
from pipeline.shards.schema import COLUMNS, Feature, Labels, read_statistics
from pipeline.sizes import format_bytes
from pipeline.sources.indexed_records import MAX_READ_BYTES, IndexedRecords, places_of, read_starts
from pipeline.sources.lookahead import Lookahead
from pipeline.sources.records import RECORD_OBJECT_BYTES, fetch_payload
from pipeline.storage.schemes import open_storage
from pipeline.tokenizers import TextInfo

EXAMPLES = ("shards --all --samples=5", "shards --html=shards.html")

SAMPLES, PAGE_SAMPLES, MOST_PAGE_SAMPLES = 2, 24, 400
BATCH, MOST_BATCHES = 1024, 200  # whose requests are planned


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the description, or writes it as a page. Raises InfeedError."""
    parser = Parser(
        "pipeline.commands.describe",
        __doc__,
        EXAMPLES,
        ("pipeline.commands.verify", "pipeline.commands.index"),
    )
    parser.add_argument(
        "directory", metavar="DIR", help="a converted dataset: the directory of manifest.json"
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help=(
            f"look at all records, not at {facts.SAMPLED_RECORDS} of a split that is large or has "
            "no labels"
        ),
    )
    help_text = (
        f"number of records to show per split (default: {SAMPLES}, on a page {PAGE_SAMPLES})"
    )
    parser.add_argument("--samples", type=int, help=help_text)
    parser.add_json()
    parser.add_argument("--split", help="which split (default: all)")
    parser.add_argument(
        "--html", metavar="FILE", help="write a page, with pictures and charts, instead of printing"
    )
    args = parser.parse_args(argv)
    on_page = args.html is not None
    samples = args.samples
    if samples is None:
        samples = PAGE_SAMPLES if on_page else SAMPLES
    if samples < 0 or (on_page and samples > MOST_PAGE_SAMPLES):
        most = f", and at most {MOST_PAGE_SAMPLES} on a page" if on_page else ""
        raise OptionError(f"--samples={samples}: must be at least 0{most}.")
    if on_page:
        check_page(args.html)
    manifest = read_manifest(args.directory)
    if args.split is not None:
        manifest = replace(manifest, splits={args.split: manifest.entry(args.split)})
    text = None
    try:
        text = find_text_info(manifest)
    # the rest can be described all the same; verify reports it as damage
    except (OptionError, StorageError) as e:
        say(Console(stderr=True), f"warning: {e}")
    FACTS.update(directory=args.directory, name=manifest.name, writer=manifest.writer)
    if not on_page and not args.json:
        print_description(manifest, text, samples, args.all)
        return
    splits = [
        split_facts(manifest, split, text, samples=samples, every=args.all)
        for split in sorted(manifest.splits)
    ]
    FACTS["splits"] = {each.name: _as_json(manifest, each) for each in splits}
    if not on_page:
        return
    command = (
        f"{program('pipeline.commands.describe')} "
        f"{shlex.join(sys.argv[1:] if argv is None else argv)}"
    )
    size = write_page(args.html, dataset_page(manifest, splits, text, command))
    say(Console(), f"{args.html}: {format_bytes(size)}")


def _as_json(manifest: Manifest, split: SplitFacts) -> Mapping[str, Any]:
    entry, found, labels = manifest.splits[split.name], split.facts, manifest.labels
    counts = {}
    if labels:
        unique = len({*labels.names}) == labels.count
        name_of = labels.name_of if unique else partial(label_text, labels)
        counts = {name_of(label) or label: count for label, count in found.labels.items()}
    return {
        "records": entry.num_records,
        "rejected": entry.rejected,
        "bytes": entry.num_bytes,
        "shards": len(entry.shards),
        "fingerprint": entry.fingerprint,
        "read": found.records,
        "damaged": found.damaged,
        "labels": counts,
    }


_BAR_WIDTH, _MAX_BARS, _MAX_TEXT, _MAX_ROW_TEXT = 32, 20, 60, 600


def print_description(manifest: Manifest, text: TextInfo | None, samples: int, every: bool) -> None:
    """Prints schema, splits, shard sizes, labels and, of each split, this number of records.

    text: how its text became tokens, if it is packed text. every: counts the labels of all records.
    Raises InfeedError."""
    console = Console()
    title = (
        f"{manifest.name}, schema {manifest.schema.name!r}, written by "
        f"{manifest.writer or 'an unknown program'}"
    )
    console.print(table(FEATURES, feature_rows(manifest), title))
    console.print(table(SPLITS, split_rows(manifest), "Splits"))
    if text:
        title = (
            f"Text: tokenizer {text.tokenizer.name}, rows of {text.sequence_length:,} tokens, "
            f"packing {text.packing}"
        )
        console.print(table(TOTALS, text_totals(manifest, text), title))
    for split, columns in read_statistics(
        open_storage(manifest.directory), manifest.directory
    ).items():
        rows = ([name, *map(_statistic, asdict(each).values())] for name, each in columns.items())
        if split in manifest.splits:
            console.print(table(COLUMNS, rows, f"{split}: columns"))
    for sentence in (*found_copies(manifest), counted_copies(manifest)):
        say(console, sentence)
    for split, entry in sorted(manifest.splits.items()):
        say(
            console,
            f"{split}: fingerprint {entry.fingerprint}, plan {entry.plan_digest}, seed "
            f"{entry.seed}",
        )
        console.print(_bars(f"{split}: shards by size", shard_sizes(entry), "shards"))
        if entry.num_records:
            reader = IndexedRecords(manifest, split, open_storage(manifest.directory))
            if entry.num_records <= MAX_RECORDS:
                requests = planned_requests(reader)
                say(
                    console,
                    f"training in batches of {requests.batch:,} from a bucket: "
                    f"{requests.requests:.1f} requests and {format_bytes(requests.num_bytes)} per "
                    "batch",
                )
            if manifest.labels:
                console.print(_label_bars(reader, manifest.labels, every))
            for number in facts.spread(entry.num_records, samples).tolist():
                console.print(_record_table(reader, number, text))


def _statistic(value: Any) -> str:
    if isinstance(value, Mapping):
        counts = (f"{name} {count:,}" for name, count in value.items())
        return shortened(", ".join(counts), _MAX_TEXT)
    return "" if value is None else item_text(value)


class Requests(NamedTuple):
    """Means per global batch of `batch` records, in the default order, on one host."""

    batch: int
    requests: float
    num_bytes: float


def planned_requests(records: IndexedRecords) -> Requests:
    """The requests that training takes from a bucket, planned without reading anything.

    Of the first epoch. One longer than 200 batches is not planned but estimated: every block is a
    request, or two if it crosses a boundary at which reads end."""
    info = records.info
    batch = min(BATCH, info.num_records)
    mean_bytes = info.num_bytes / info.num_records
    order, window_bytes = plan_records(
        records, batch, Sizes(None, None, None), seed=0, epochs="drop"
    )
    steps = order.steps_per_epoch
    ahead = training_bytes(replace(info, remote=True), window_bytes)
    if steps > MOST_BATCHES:
        block = order.block_records
        requests = batch / block * (1 + block * mean_bytes / MAX_READ_BYTES)
        # read once, in reads as large as they may be
        if info.num_bytes + RECORD_OBJECT_BYTES * info.num_records <= ahead:
            requests = info.num_bytes / MAX_READ_BYTES / steps
        return Requests(batch, requests, batch * mean_bytes)

    def groups() -> Iterator[tuple[np.ndarray, int]]:
        for step in range(steps):
            ids = order.rows(order.advance(order.start, step), [range(batch)]).record_ids
            yield ids, records.weigh(ids)

    lookahead = Lookahead(groups(), ahead, partial(places_of, records.index))
    requests = num_bytes = 0
    for group in lookahead:
        (ids, *_), starts = lookahead.due(read_starts)
        requests += len(starts)
        num_bytes += int(records.index.lengths[ids].sum())
        lookahead.used(group)
    return Requests(batch, requests / steps, num_bytes / steps)


def _label_bars(reader: IndexedRecords, labels: Labels, every: bool) -> Group:
    ids, whose = facts.looked_at(reader, every)
    facts_of_labels = facts.gathered(reader, ids, only_labels=True)
    known = LabelCounts(labels, facts_of_labels.labels)
    rows, note = known.rows(_MAX_BARS)
    title = f"{reader.split}: labels of {whose}; {known.occurring}."
    sentences = [title, known.outside, note, facts.damage(facts_of_labels, reader)]
    return _bars(" ".join(filter(None, sentences)), rows, "records")


def _bars(title: str, rows: Sequence[tuple[str, int]], unit: str) -> Group:
    most = max((count for _, count in rows), default=0)
    cells = (
        (name, count, "█" * round(_BAR_WIDTH * count / most) or ("▏" if count else ""))
        for name, count in rows
    )
    # a table would wrap its own title to its width
    return Group(Text(f"\n{title}"), table(("", unit, ""), cells))


def _record_table(reader: IndexedRecords, number: int, info: TextInfo | None) -> Table | Text:
    manifest = reader.manifest
    rows = []
    try:
        payload = fetch_payload(reader, number)
        values = {"(opaque)": [payload]} if manifest.schema.opaque else decode_example(payload)
    except (CorruptRecordError, SchemaError) as e:
        return Text(f"{reader.split}: record {number:,} cannot be shown. {e}")
    for key, items in sorted(values.items()):
        feature = manifest.schema.features.get(key)
        text = ", ".join(_item(feature, item) for item in items[:4])
        text += f", ... ({len(items)} values)" if len(items) > 4 else ""
        if manifest.labels and key == manifest.labels.key:
            text = ", ".join(
                label_text(manifest.labels, label) for label in manifest.labels.of(values)
            )
        rows.append((key, text))
    if info:
        rows.append(("(text)", shortened(info.text_of(values), _MAX_ROW_TEXT)))
    return table(
        ("feature", "value"),
        rows,
        f"{reader.split}: record {number:,}, {format_bytes(len(payload))}",
    )


def _item(feature: Feature | None, item: Any) -> str:
    if feature and feature.content == "image":
        return f"{_image(item)}, {format_bytes(len(item))}"
    if feature and feature.content == "text":
        return shortened(item.decode("utf-8", "backslashreplace"), _MAX_TEXT)
    return item_text(item)


def _image(data: bytes) -> str:
    try:
        with open_image(data) as image:
            return f"{image.format} {image.width}x{image.height} {image.mode}"
    except UnidentifiedImageError:  # its text has the address of an object
        return "unreadable image (no image that Pillow recognizes)"
    except UNREADABLE as e:
        return f"unreadable image ({str(e)[:_MAX_TEXT]})"


if __name__ == "__main__":
    exit_with(main, facts=True)
