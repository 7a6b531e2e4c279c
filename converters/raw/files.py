"""Raw files and their splits: which splits raw data has, first checks of --raw-data-dir, error
texts that the searches for raw data share, lists of class names, and compressed files, uncompressed
to temporary ones that can be read by ranges.

Splits are named by files and folders, or shares of all records, chosen by a hash, are held out. In
a label file line n names the n-th class; synsets reads label files of WordNet ids, whose order does
not matter."""

import argparse
import bisect
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from beam_jobs.converter import Source
from beam_jobs.references import encoded
from beam_jobs.scratch import Scratch
from pipeline.checks import check_number
from pipeline.errors import LabelError, OptionError, RawDataError
from pipeline.shards.frames import Compression
from pipeline.sizes import counted
from pipeline.sources.named_splits import SPLIT_NAMES
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import Stat, Storage, find_file, join

SPLITS = ("train", "validation", "test")
NO_OTHERS = "(?!)"  # for `unread`: matches no name
_SPLIT = re.compile(rf"({'|'.join(SPLIT_NAMES)})[-_./].*", re.DOTALL | re.I | re.ASCII)
_MOST_PATHS = 100  # to one directory
_SPLIT_KEY = b"infeed image_folder validation"
_Item = TypeVar("_Item")


def open_raw_data(raw_data_dir: str) -> Storage:
    """The storage of the raw data. Raises RawDataError if the path does not exist."""
    storage = open_storage(raw_data_dir)
    if not storage.exists(raw_data_dir):
        raise RawDataError(
            f"--raw-data-dir={raw_data_dir} does not exist. Give the directory of the raw data."
        )
    return storage


def first_few(names: Iterable[str]) -> str:
    """The first names, up to 8, for errors that list what was found instead."""
    return ", ".join(list(names)[:8]) or "nothing"


def is_hidden(name: str) -> bool:
    """Whether to ignore a file or folder: hidden ones, and what macOS and Windows add to zips and
    folders."""
    return name.startswith(".") or name.lower() in ("__macosx", "thumbs.db", "desktop.ini")


def chosen(raw_data_dir: str, splits: Sequence[str], existing: Collection[str]) -> Sequence[str]:
    """The splits to convert: those of --splits, or all existing ones. Raises RawDataError if one
    does not exist."""
    for split in splits:
        if split not in existing:
            raise RawDataError(
                f"{raw_data_dir} does not have the {split} split. It has: {', '.join(existing)}."
            )
    return [split for split in existing if split in splits or not splits]


def files_below(
    storage: Storage, directory: str, searched: Callable[[str], bool] = lambda _: True
) -> Iterator[tuple[str, Stat]]:
    """All files below the directory by relative path, sorted by folder; without hidden ones.
    searched: whether to look into a folder of this name.

    Raises RawDataError for a directory with too many paths: two links in each of 27 directories
    make 134 million."""
    pending = [""]
    paths = Counter[Path]()
    while pending:
        place = pending.pop()
        path = join(directory, place) if place else directory
        if not is_remote(path):
            below = Path(directory).resolve() / place
            real = below.resolve()
            if real in map(Path.resolve, below.parents):  # a link to a directory above
                continue
            paths[real] += 1
            if paths[real] > _MOST_PATHS:
                links = filter(Path.is_symlink, reversed((Path(path), *Path(path).parents)))
                raise RawDataError(
                    f"{real} is found by more than {_MOST_PATHS} paths, through symbolic links "
                    f"such as {first_few(map(str, links))}. Remove the links, or give a directory "
                    "without them."
                )
        files, folders = storage.entries(path)
        yield from ((f"{place}{name}", stat) for name, stat in files.items() if not is_hidden(name))
        pending += [
            f"{place}{name}/"
            for name in reversed(folders)
            if not is_hidden(name) and searched(name)
        ]


def left_out(names: Sequence[str], why: str) -> Sequence[str]:
    """A note that these files are not read, if there are any. why: a sentence."""
    if not names:
        return []
    more = f" and {len(names) - 5:,} more" if len(names) > 5 else ""
    return [f"{counted(len(names), 'file')} not read: {', '.join(names[:5])}{more}. {why}"]


def unread(
    raw_data_dir: str, sources: Sequence[Source], splits: str | None, used: str
) -> Sequence[str]:
    """A note about what else is in the directory of the raw data, unless --splits chose some.
    used: matches the names of other files that the conversion reads; NO_OTHERS if it reads none."""
    storage = open_storage(raw_data_dir)
    if splits or find_file(storage, raw_data_dir):
        return []
    files, folders = storage.entries(raw_data_dir)
    uris = [source.origin or source.uri for source in sources]
    read = {uri.removeprefix(join(raw_data_dir, "")).partition("/")[0] for uri in uris}
    names = [*([] if raw_data_dir in uris else files), *folders]
    rest = [n for n in names if not (n in read or is_hidden(n) or re.search(used, n))]
    return left_out(rest, "Their names are none that this conversion reads.")


def by_split(
    raw_data_dir: str, names: Sequence[str], held_out: "HeldOut | None", examples: str
) -> Mapping[str, Sequence[str]]:
    """The names of files by split, in the order of SPLITS. Raises RawDataError if none names a
    split.

    held_out: None if the names state the split. examples: for the error."""
    if held_out is not None:
        return dict.fromkeys(held_out.splits, names)
    files: dict[str, list[str]] = {}
    words = dict[str, str]()
    for match in filter(None, map(_SPLIT.fullmatch, names)):
        word = match[1].lower()
        split = SPLIT_NAMES[word]
        if words.setdefault(split, word) != word:
            raise RawDataError(
                f"{raw_data_dir} has {files[split][0]} and {match[0]}, which both name the split "
                f"{split}. Rename or remove one."
            )
        files.setdefault(split, []).append(match[0])
    if not files:
        raise RawDataError(
            f"{raw_data_dir} has no {examples}. It has: {first_few(names)}. If these are not split "
            "yet, give --validation-fraction (0 for train only)."
        )
    return {split: files[split] for split in SPLITS if split in files}


class HeldOut(NamedTuple):
    """The shares of all records that become the splits validation and test, decided only by a hash
    of a record's place ("<class>/<name>" of a file), key or content. So adding records moves no
    others, and a larger share has the records of a smaller one."""

    validation: float
    test: float = 0.0

    @property
    def splits(self) -> Sequence[str]:
        """The splits that get records."""
        return [split for split in SPLITS if getattr(self, split, True)]

    def split_of(self, place: str) -> str:
        """The split to which the record belongs."""
        digest = hashlib.blake2b(encoded(place), digest_size=8, key=_SPLIT_KEY).digest()
        number = int.from_bytes(digest, "big")
        if number < self.validation * 2**64:
            return "validation"
        return "test" if number < sum(self) * 2**64 else "train"


def held_out_of(args: argparse.Namespace) -> HeldOut | None:
    """The shares that the options ask for; None if the raw data has splits. Raises OptionError."""
    fractions = args.validation_fraction, args.test_fraction
    for split, fraction in zip(SPLITS[1:], fractions, strict=True):
        check_number(f"--{split}-fraction", fraction, at_least=0, below=1)
    if fractions == (None, None):
        return None
    shares = HeldOut(*(fraction or 0.0 for fraction in fractions))
    if sum(shares) >= 1:
        raise OptionError(
            f"--validation-fraction and --test-fraction are {sum(shares):g} together: nothing is "
            "left."
        )
    return shares


def is_of(split: str, place: str, held_out: HeldOut | None) -> bool:
    """Whether a record is in the split. held_out: None if each split has its own raw data."""
    return held_out is None or held_out.split_of(place) == split


def read_class_names(label_file: str) -> tuple[str, ...]:
    """The lines of a label file, in order. Raises LabelError if a line is empty or repeated, or not
    UTF-8."""
    return parse_class_names(read_label_text(label_file), label_file)


def parse_class_names(text: str, where: str) -> tuple[str, ...]:
    """The same, from the content of the file. Ignores empty lines at the end. where: its name in
    error messages."""
    names = [line.strip() for line in text.rstrip().splitlines()]
    repeated = sorted(a for a, b in itertools.pairwise(sorted(names)) if a == b)
    if not names or "" in names:
        raise LabelError(
            f"{where}: line {names.index('') + 1 if names else 1} is empty; it must name a class."
        )
    if repeated:
        raise LabelError(f"{where}: {repeated[0]} is listed twice.")
    return tuple(names)


def read_label_text(path: str) -> str:
    """The text of a label file, as from label_text."""
    return label_text(open_storage(path).read(path), path)


def label_text(data: bytes, where: str) -> str:
    """The text of a label file, without a byte order mark. Raises LabelError if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise LabelError(
            f"{where} is not UTF-8 text: {e.reason} at byte {e.start}. It may be the wrong file, "
            "or damaged."
        ) from e


def names_digest(names: Sequence[str]) -> str:
    """32 hex digits that depend on the names and their order."""
    return hashlib.blake2b("\n".join(names).encode(), digest_size=16).hexdigest()


def position(names: Sequence[str], name: str) -> int:
    """The index of a name in a sorted list, or -1."""
    place = bisect.bisect_left(names, name)
    return place if place < len(names) and names[place] == name else -1


def readable(
    path: str, scratch: Scratch | None, split: str = "", compression: Compression | None = None
) -> Source:
    """The raw file itself as a unit to scan, or its temporary uncompressed copy.

    A copy has the stamp of the raw file: each run makes it again, which is not a change of the raw
    data. scratch: None forbids writing. split: "" for a file of several. compression: None for the
    one that the name announces, if any. Raises OptionError if it would have to write, and
    RawDataError."""
    storage = open_storage(path)
    if not compression and path.lower().endswith((".gz", ".tgz")):
        compression = "gzip"
    if not compression:
        stat = storage.stat(path)
        return Source(split, path, stat, bytes=stat.bytes)
    if scratch is None:
        raise OptionError(
            f"{path} has to be uncompressed before it can be scanned, and --dry-run writes nothing."
        )
    uri = scratch.uncompressed(storage, path, compression)
    stat = open_storage(uri).stat(uri)
    origin = storage.stat(path)
    crc32c = origin.crc32c if stat.crc32c is None else stat.crc32c
    stat = stat._replace(stamp=origin.stamp, crc32c=crc32c)
    return Source(split, uri, stat, bytes=stat.bytes, origin=path)


def batches(
    items: Iterable[_Item],
    size: Callable[[_Item], int],
    enough: int,
    error: Callable[[_Item], str] = lambda _: "",
    most_bad: int = 0,
) -> Iterator[Sequence[_Item]]:
    """The items in groups. A group ends with the item that makes it large enough, or that has an
    error after most_bad others."""
    batch = list[_Item]()
    total = bad = 0
    for item in items:
        batch.append(item)
        total += size(item)
        bad += bool(error(item))
        if total >= enough or bad > most_bad:
            yield batch
            batch = []
            total = bad = 0
    if batch:
        yield batch
