"""The classes of a training, in <workdir>/classes.json: other data, such as new photographs, may have other classes."""

import json
from dataclasses import asdict, dataclass

from pipeline.errors import CheckpointError
from pipeline.shards.typed_json import Count, JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join
from trainer.workdir import CLASSES

__all__ = ["TrainedClasses", "keep_classes", "trained_classes"]


@dataclass(frozen=True)
class TrainedClasses:
    """Labels base..base + num_classes - 1; names[i] is the name of label base + i, names is empty if they have none."""

    base: Count
    num_classes: Count
    names: tuple[str, ...]


def keep_classes(workdir: str, classes: TrainedClasses) -> None:
    """Writes the file. Raises StorageError."""
    storage, path = open_storage(workdir), _path(workdir)
    with storage.publish(path) as sink:
        sink.write(json.dumps(asdict(classes), indent=1).encode() + b"\n")


def trained_classes(workdir: str) -> TrainedClasses | None:
    """The classes of the training in this work directory; None if not known. CheckpointError for a damaged file."""
    storage, path = open_storage(workdir), _path(workdir)
    if not storage.exists(path):
        return None
    file = JsonFile(path, CheckpointError, "Remove it: then the classes of the data count.")
    return file.read(storage.read(path), TrainedClasses)


def _path(workdir: str) -> str:
    return join(workdir, CLASSES)
