"""Where exports appear: <path>/<Unix seconds>, the layout of TensorFlow Serving, which serves the
largest number.

An export is a directory with a saved_model.pb: on a disk it appears by a rename, in a bucket
saved_model.pb comes last. Its description, assets.extra/infeed.json, states its number. Only
directories that prove in this way that an export made them are ever removed. What to export is
checked here without TensorFlow, so that a mistake shows before a run rather than after it."""

import contextlib
import fcntl
import importlib.util
import json
import math
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import fspath
from pathlib import Path
from typing import Any

from pipeline.checks import check_number, check_positive_int
from pipeline.errors import OptionError, StorageError
from pipeline.logs import logger
from pipeline.packages import how_to_install
from pipeline.shards.naming import MANIFEST_FILE
from pipeline.shards.schema import Labels
from pipeline.storage.local import sync
from pipeline.storage.schemes import is_remote, open_storage
from pipeline.storage.storage import explained, join
from trainer.checkpointing.listing import checkpoints_directory, finished_steps
from trainer.config import Model
from trainer.reports.workdir import CHECKPOINTS, OWNERS

log = logger("trainer")

GRAPH, EXTRA, DESCRIPTION = "saved_model.pb", "assets.extra", "infeed.json"
_ABOUT = f"{EXTRA}/{DESCRIPTION}"
_LOCK, _UNPUBLISHED = "lock", ".unpublished-"
_DESCRIBED = {"origin", "signatures", "verified", "export"}
_MARK = b"an export that infeed is making\n"  # the content of a lock
# What an export consists of. The graph goes first, and the description last: until then it is known
# as an export.
_VARIABLES = ("variables/variables.index", "variables/variables.data-00000-of-00001")
_FILES = (GRAPH, "fingerprint.pb", *_VARIABLES, _ABOUT)
_CHUNK = 8 * 1024**2
UNFINISHED_SECONDS = 24 * 3600.0  # no upload takes longer

PLATFORMS = ("cpu", "cuda", "tpu")


class Exports:
    """The exports in a directory, on a disk or in a bucket."""

    def __init__(self, path: str) -> None:
        self.path = str(path).rstrip("/")
        self._storage = open_storage(self.path)

    def numbers(self) -> list[int]:
        """Names of the complete exports, ascending."""
        return [
            number
            for number in self._all_numbers()
            if self._storage.exists(join(self._place(number), GRAPH))
        ]

    def _all_numbers(self) -> list[int]:
        _, names = self._storage.entries(self.path)
        return sorted(int(name) for name in names if re.fullmatch(r"0|[1-9][0-9]{0,18}", name))

    def _place(self, number: int) -> str:
        return join(self.path, str(number))

    def origin(self, number: int) -> dict[str, Any]:
        """What an export says of the model in it; {} if it says nothing."""
        place = self._place(number)
        return self._about(place)["origin"] if self._storage.exists(join(place, _ABOUT)) else {}

    def _about(self, place: str) -> Any:
        return json.loads(self._storage.read(join(place, _ABOUT)))

    def _is_ours(self, number: int) -> bool:
        """Whether an export made this very directory."""
        place = self._place(number)
        if Path(place).is_symlink() or Path(place, EXTRA).is_symlink():
            return False
        try:
            about = self._about(place)
        except (StorageError, ValueError, RecursionError):  # missing or damaged
            return False
        # not of a copy
        return isinstance(about, dict) and about.keys() >= _DESCRIBED and about["export"] == number

    @contextlib.contextmanager
    def unpublished(self) -> Iterator[Path]:
        """A new local directory to make an export in. It is removed on exit; a published export has
        been moved out by then.

        On a disk it is next to the exports, and directories left there by killed processes are
        removed."""
        if self._storage.remote:
            with tempfile.TemporaryDirectory(prefix="infeed-export-") as directory:
                yield Path(directory)
            return
        try:
            Path(self.path).mkdir(parents=True, exist_ok=True)
            _remove_left(Path(self.path))
            directory = Path(tempfile.mkdtemp(prefix=_UNPUBLISHED, dir=self.path))
        except OSError as e:
            raise StorageError(f"cannot create exports in {self.path}: {explained(e)}") from e
        with (directory / _LOCK).open("wb") as lock:
            # a file system without locks: then it is never removed by others
            with contextlib.suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
                lock.write(_MARK)
                lock.flush()
            try:
                yield directory
            finally:
                shutil.rmtree(directory, ignore_errors=True)

    def publish(self, directory: Path, description: Mapping[str, Any]) -> str:
        """Publishes a directory with a SavedModel, made below one of unpublished(), and its
        description. Returns where it is."""
        publish = self._upload if self._storage.remote else self._move
        number = max(int(time.time()), *(known + 1 for known in self.numbers()), 0)
        while True:
            page = json.dumps({**description, "export": number}, indent=1) + "\n"
            place = self._place(number)
            if publish(directory, place, page.encode()):
                return place
            number += 1  # of an export in the same second

    def _move(self, directory: Path, place: str, page: bytes) -> bool:
        """False if the place is taken."""
        (directory / EXTRA).mkdir(exist_ok=True)
        (directory / _ABOUT).write_bytes(page)
        for path in (*directory.rglob("*"), directory):
            sync(path)  # else a crash of the machine could leave an export with empty files
        try:
            directory.rename(place)
        except OSError as e:
            if Path(place).exists():
                return False
            raise StorageError(f"cannot publish {place}: {explained(e)}") from e
        sync(Path(place).parent)
        return True

    def _upload(self, directory: Path, place: str, page: bytes) -> bool:
        """False if the place is taken."""
        files = [path for path in directory.rglob("*") if path.is_file()]
        files.sort(key=lambda path: (path == directory / GRAPH, path))
        if not self._storage.create(join(place, _ABOUT), page):
            return False
        try:
            for file in files:
                copy_file(str(file), join(place, file.relative_to(directory).as_posix()))
        except BaseException:
            with contextlib.suppress(StorageError):  # that of the upload is the one to tell
                self._remove(place)
            raise
        return True

    def keep(self, count: int) -> None:
        """Removes all exports that were made here but the `count` with the largest numbers; and,
        after a day, uploads that killed processes left unfinished."""
        ours = [number for number in self._all_numbers() if self._is_ours(number)]
        complete = [number for number in self.numbers() if number in ours]
        before = time.time() - UNFINISHED_SECONDS
        left = [number for number in ours if number not in complete and number < before]
        for place in map(self._place, [*left, *complete[:-count]]):
            log.info("export: removing %s", place)
            self._remove(place)

    def _remove(self, place: str) -> None:
        """Removes what an export consists of. Other files stay."""
        extra = self._about(place).get("assets_extra")
        extra = filter(_can_be_asset, extra if isinstance(extra, list) else ())
        for name in (*(f"{EXTRA}/{name}" for name in extra), *_FILES):
            if not Path(place, name).parent.is_symlink():
                self._storage.delete(join(place, name))
        for name in () if self._storage.remote else ("variables", "assets", EXTRA, "."):
            with contextlib.suppress(OSError):  # it has other files, or is not there
                Path(place, name).rmdir()
        if self._storage.exists(place):
            log.warning("export: %s has files that no export wrote; they stay there", place)


def check_place(path: str, workdir: str | None = None) -> None:
    """Raises OptionError for a directory in which a number has another meaning, a dataset's or that
    of a run's checkpoints, for one from which TensorFlow could not load, and if that is not
    installed. workdir: of a run that may not have begun."""
    if importlib.util.find_spec("tensorflow") is None:
        raise OptionError(
            f"exports need TensorFlow, which is not installed. Install it: {how_to_install('tf')}."
        )
    checkpoints = checkpoints_directory(workdir or path)
    path, checkpoints = (
        where if is_remote(where) else str(Path(where).resolve()) for where in (path, checkpoints)
    )
    storage = open_storage(path)
    if "[" in path or "\\" in path:
        raise OptionError(
            f"{path} has [ or \\ in its name, which TensorFlow takes for a pattern: it could load "
            "no export. Give another directory as export_path."
        )
    if any(storage.exists(join(path, name)) for name in (MANIFEST_FILE, "_shards")):
        raise OptionError(
            f"{path} is a dataset, so exports cannot be published in it. Give another directory."
        )
    run, inside, _ = f"{path}/".rpartition(f"/{CHECKPOINTS}/")
    of_a_run = inside and (storage.exists(join(run, OWNERS)) or finished_steps(run))
    if of_a_run or f"{path}/".startswith(f"{checkpoints}/"):
        raise OptionError(
            f"{path} belongs to the checkpoints of a run, whose names are numbers, too. Give "
            "another directory."
        )


def _remove_left(exports: Path) -> None:
    """Removes what killed processes have left: their locks have our mark, and are free."""
    for lock in exports.glob(f"{_UNPUBLISHED}*/{_LOCK}"):
        if lock.is_symlink() or lock.parent.is_symlink() or not lock.is_file():
            continue
        with contextlib.suppress(OSError), lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if file.read(len(_MARK) + 1) == _MARK:
                shutil.rmtree(lock.parent)


def copy_file(source: str, path: str) -> None:
    """Copies a file from and to a disk or a bucket."""
    with open_storage(source).open(source) as file, open_storage(path).publish(path) as sink:
        shutil.copyfileobj(file, sink, _CHUNK)


def check_asset(name: str, path: str) -> None:
    """Raises OptionError for a name that a file of the user's cannot have in assets.extra,
    StorageError unless there is a file at `path`."""
    if not _can_be_asset(name):
        raise OptionError(
            f"assets_extra has {name!r}. Give a file name of up to 255 bytes without '/', other "
            f"than our {DESCRIPTION}."
        )
    open_storage(str(path)).stat(str(path))


def _can_be_asset(name: Any) -> bool:
    """Whether a file in assets.extra may have this name, which may come from anyone's
    description."""
    return (
        isinstance(name, str)
        and name.isprintable()
        and "/" not in name
        and len(name.encode()) < 256
        and name.lower() not in ("", ".", "..", DESCRIPTION)
    )


@dataclass(frozen=True)
class ExportOptions:
    """path: of the directory of exports. The others: see Trainer.export."""

    path: str
    model: Model | None = None
    keys: Sequence[str] | None = None
    labels: Mapping[str, Labels] | None = None
    tolerance: float = 1e-5
    keep: int | None = None
    platforms: Sequence[str] = PLATFORMS
    assets_extra: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for values that are not allowed, and without TensorFlow."""
        object.__setattr__(self, "path", fspath(self.path))
        check_place(self.path)
        check_number("tolerance", self.tolerance, at_least=0, below=math.inf)
        check_positive_int("keep", self.keep)
        if not self.platforms or not set(self.platforms).issubset(PLATFORMS):
            raise OptionError(
                f"platforms={self.platforms!r}. Allowed: one or more of {', '.join(PLATFORMS)}."
            )
        for name, path in (self.assets_extra or {}).items():
            check_asset(name, path)
