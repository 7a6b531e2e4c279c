"""Which split a TFRecord file belongs to, by its name: the only rule for files that no manifest
lists.

A name is split at "-" and "."; one of the parts may name a split: train (training), validation
(valid, val, dev) or test (testing), alone or as the last word before a number (mnist_train,
train_00012). Words after it are part of the split's name: train_clean100 is a split of its own. So
train-00000-of-00010, train.tfrecord and imagenet2012-train.tfrecord-00000-of-00016 are all train.
If no part names a split, or several do, none is guessed.

The small files that TFDS writes describe a dataset: the tfds converter and open_dataset recognize
it by them, and other tools use those next to TFRecord files. Needs no TFDS."""

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from pipeline.errors import OptionError, RawDataError
from pipeline.shards.naming import validate_split
from pipeline.shards.schema import Labels
from pipeline.shards.sidecars import METADATA_FILE, SIDECAR_FILES, labels_file, names_in
from pipeline.shards.typed_json import once
from pipeline.storage.storage import Listing, Stat, Storage, find_file, join

SPLIT_NAMES = {"train": "train", "training": "train", "test": "test", "testing": "test"}
SPLIT_NAMES |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
_NUMBERED = re.compile(r"(.*?)(\d+)-of-(\d+)(.*)")
_NOT_RECORDS = (".idx", ".json", ".txt", ".csv", ".md")  # DALI's index, and documentation
_SHOWN = 5
TfdsFiles = Mapping[str, str]  # name -> text
# split -> path relative to the directory -> size and checksum
Files = Mapping[str, Listing]
_TFDS_FILES = (*SIDECAR_FILES, METADATA_FILE)  # and <label key>.labels.txt
_REWRITTEN = ("fileFormat", "splits")  # keys of dataset_info.json that the commit writes


def split_of(name: str) -> str | None:
    """The split in a file's name; None if the name contains none, or more than one."""
    splits = {split for part in re.split(r"[-.]", name.lower()) for split in _splits_in(part)}
    return splits.pop() if len(splits) == 1 else None


def _splits_in(part: str) -> Sequence[str]:
    words = [word for word in part.split("_") if not word.isdigit()]
    splits = [word for word in words if word in SPLIT_NAMES]
    if len(splits) == 1 and splits != words[-1:]:  # words follow
        return ["_".join(words[words.index(splits[0]) :])]
    return [SPLIT_NAMES[word] for word in splits]


def files_by_name(directory: str, listed: Listing) -> Files:
    """The TFRecord files of a listing by split, sorted by name.

    A TFRecord file has "tfrec" in its name or a number such as 00000-of-00010. Raises RawDataError
    if a name does not show its split, or if files of a numbered set are missing: nobody would
    notice if they were ignored."""
    by_split: dict[str, dict[str, Stat]] = defaultdict(dict)
    unknown = []
    for name, stat in sorted(listed.items()):
        looks_so = "tfrec" in name.lower() or _NUMBERED.fullmatch(name)
        if not looks_so or name.startswith((".", "_")) or name.lower().endswith(_NOT_RECORDS):
            continue
        if split := split_of(name):
            by_split[validate_split(split)][name] = stat
        else:
            unknown.append(name)
    if unknown:
        raise RawDataError(
            f"{directory}: cannot tell the split of {first_names(unknown)}: the names contain "
            "none, or several. Give train=PATTERN."
        )
    for split, files in by_split.items():
        _check_sets(directory, split, files)
    return by_split


def _check_sets(directory: str, split: str, files: Listing) -> None:
    sets: dict[tuple[str, str, str], set[int]] = defaultdict(set)
    for match in filter(None, map(_NUMBERED.fullmatch, files)):
        sets[match[1], match[3], match[4]].add(int(match[2]))
    totals: dict[str, list[str]] = defaultdict(list)
    for before, total, _ in sets:
        totals[before].append(total)
    for before, totals_of_sets in totals.items():
        if len(set(totals_of_sets)) > 1:
            raise RawDataError(
                f"{directory}: the files of {split!r} that start with {before!r} belong to several "
                f"sets: -of-{', -of-'.join(sorted(totals_of_sets))}. Remove the outdated one, or "
                f"select one: {split}=PATTERN."
            )
    for (before, total, after), numbers in sets.items():
        # lazy: a name may state any number of files
        missing = (number for number in range(int(total)) if number not in numbers)
        names = [
            f"{before}{number:0{len(total)}d}-of-{total}{after}"
            for number in itertools.islice(missing, _SHOWN)
        ]
        if names:
            count = int(total) - sum(number < int(total) for number in numbers)
            raise RawDataError(
                f"{directory}: {count} of {count + len(numbers)} files of {split!r} are missing: "
                f"{first_names(names, count)}. Copy them, or select files: {split}=PATTERN."
            )


def files_by_pattern(
    storage: Storage, directory: str, patterns: Iterable[tuple[str, str]]
) -> Files:
    """The files that match each (split, glob), sorted by name; globs are relative to the directory.

    Hidden files never match. Raises OptionError for a pattern without matches, or a file in two
    splits."""
    by_split: dict[str, dict[str, Stat]] = defaultdict(dict)
    owner = dict[str, str]()
    for split, pattern in patterns:
        for path, stat in matching_files(join(directory, pattern), storage).items():
            name = path.removeprefix(join(directory, ""))
            if owner.setdefault(name, split) != split:
                raise OptionError(
                    f"{name} matches a pattern of {owner[name]!r} and one of {split!r}."
                )
            by_split[validate_split(split)][name] = stat
    return {split: dict(sorted(files.items())) for split, files in by_split.items()}


def matching_files(uri: str, storage: Storage) -> Listing:
    """Path -> size and checksum, sorted by name. Directories and patterns do not include hidden
    files.

    Raises OptionError if there is no such file; StorageError."""
    directory, slash, name = uri.rpartition("/")
    if not is_pattern(name):
        file = find_file(storage, uri)
        if not (files := {uri: file} if file else _visible(uri, storage)):
            raise OptionError(
                f"{uri} is neither a file nor a directory with files. Give one, or a pattern: "
                "DIR/*.bin."
            )
        return files
    directory = directory or slash or "."
    listed = _visible(directory, storage)
    if (named := join(directory, name)) in listed:  # names may contain brackets
        return {named: listed[named]}
    matching = {
        path: stat for path, stat in listed.items() if fnmatchcase(path.rpartition("/")[2], name)
    }
    if not matching:
        names = [path.rpartition("/")[2] for path in listed]
        raise OptionError(
            f"{uri} matches no file. {directory} has: {first_names(names)}. Only the last part can "
            "be a pattern."
        )
    return matching


def is_pattern(name: str) -> bool:
    """Whether a name may match several files."""
    return any(character in name for character in "*?[")


def _visible(directory: str, storage: Storage) -> Listing:
    return {
        join(directory, name): stat
        for name, stat in storage.list(directory).items()
        if not name.startswith(".")
    }


def parse_assignment(option: str, text: str) -> tuple[str, str]:
    """The two sides of SPLIT=VALUE. Raises OptionError."""
    split, equals, value = text.partition("=")
    if not equals or not value:
        raise OptionError(f"{option}={text}: write SPLIT=..., such as {option}=train=...")
    return validate_split(split), value


def first_names(names: Sequence[str], count: int | None = None) -> str:
    """The first five names, and the number of the others, for messages. count: of all names, if
    these are only the first."""
    others = (count or len(names)) - _SHOWN
    more = f" and {others} more" if others > 0 else ""
    return f"{', '.join(names[:_SHOWN]) or 'nothing'}{more}"


def tfds_files(storage: Storage, directory: str, listed: Listing) -> TfdsFiles:
    """Name -> text of the files that describe a TFDS dataset; {} if there are none. Raises
    RawDataError."""
    if not {"features.json", "dataset_info.json"} <= listed.keys():
        return {}
    names = [name for name in listed if name in _TFDS_FILES or name.endswith(".labels.txt")]
    return {name: _text_of_tfds(storage, join(directory, name)) for name in sorted(names)}


def _text_of_tfds(storage: Storage, path: str) -> str:
    try:
        text = storage.read(path).decode()
        if path.endswith(".json") and not isinstance(
            json.loads(text, object_pairs_hook=once), dict
        ):
            raise ValueError("it is not an object")
    except (ValueError, RecursionError) as e:
        raise RawDataError(
            f"{path} is not as TFDS writes it: {e}. Copy it again; without features.json and "
            "dataset_info.json, converters.tfrecord_to_gcs uses only the records."
        ) from e
    return text


def kept_of_tfds(tfds: TfdsFiles) -> dict[str, str]:
    """The part of the files that a schema keeps: everything except the sizes of splits.

    So preparing one split again does not change the plans of the others."""
    if not tfds:
        return {}
    info = {
        key: value
        for key, value in json.loads(tfds["dataset_info.json"]).items()
        if key not in _REWRITTEN
    }
    return {**tfds, "dataset_info.json": json.dumps(info, indent=2, sort_keys=True)}


def tfds_labels(tfds: TfdsFiles) -> Labels | None:
    """The names of the only ClassLabel, or of the one called label. TFDS counts from 0. Raises
    RawDataError."""
    return _usual(
        {
            key: Labels(key, 0, names_in(names))
            for key, kind in tfds_leaves(tfds)
            if kind == "classLabel" and (names := tfds.get(labels_file(key)))
        }
    )


def _usual(labels: Mapping[str, Labels]) -> Labels | None:
    """The names of the feature `label`, or of the only feature that has names."""
    return labels.get("label") or (next(iter(labels.values())) if len(labels) == 1 else None)


def tfds_classes(tfds: TfdsFiles) -> Labels | None:
    """Like tfds_labels. A ClassLabel that has only a number of classes, such as mnist's, gets the
    names "0", "1", ...

    Only for readers: a conversion lists real names."""
    numbered = {
        key: Labels(key, 0, tuple(map(str, range(int(described["numClasses"])))))
        for key, kind, described in _described(tfds)
        if kind == "classLabel" and re.fullmatch("[0-9]{1,7}", str(described.get("numClasses", "")))
    }
    return tfds_labels(tfds) or _usual(numbered)


def tfds_leaves(tfds: TfdsFiles) -> Sequence[tuple[str, str]]:
    """(key in a record, kind such as image or classLabel) of each feature in features.json, even
    inside sequences.

    Raises RawDataError."""
    return [(key, kind) for key, kind, _ in _described(tfds)]


def _described(tfds: TfdsFiles) -> Sequence[tuple[str, str, Any]]:
    try:
        return list(_leaves("", json.loads(tfds.get("features.json", "{}"))))
    except (AttributeError, KeyError, TypeError, RecursionError) as e:
        raise RawDataError(
            f"TFDS's features.json describes no features ({type(e).__name__}: {e}). Copy it again."
        ) from e


def _leaves(key: str, feature: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    if "featuresDict" in feature:
        for name, inner in feature["featuresDict"].get("features", {}).items():
            yield from _leaves(f"{key}/{name}".lstrip("/"), inner)
    elif "sequence" in feature:
        yield from _leaves(key, feature["sequence"]["feature"])
    else:
        yield from (
            (key, kind, value) for kind, value in feature.items() if kind != "pythonClassName"
        )
