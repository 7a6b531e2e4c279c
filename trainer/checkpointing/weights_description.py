"""What published weights say of the images that they were trained with, in a file beside theirs."""

import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from pipeline.errors import CheckpointError, OptionError
from pipeline.logs import logger
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file

FILES = ("config.json", "preprocessor_config.json")  # of timm, of transformers
TOLERANCE = 1e-3

log = logger("trainer")
Statistics = tuple[Sequence[float], Sequence[float]]


def check_images(
    init_from: str, used: Statistics, known: Mapping[str, Statistics], size: int
) -> None:
    """Compares the images of a model with those that weights describe: another size is logged.

    used: the means and deviations that normalize them. known: those that normalization= can choose,
    by name. Raises OptionError for weights that were trained with others, CheckpointError for a
    damaged description."""
    directory = init_from
    if init_from.endswith(".safetensors"):
        directory = init_from.rpartition("/")[0] or "."
    for path in (join(directory, name) for name in FILES):
        content = read_file(open_storage(path), path) or "{}"
        file = JsonFile(path, CheckpointError, "Copy it again, or remove it.")
        page = file.read(content, dict[str, Any])
        page = file.typed(page.get("pretrained_cfg", page), dict[str, Any])
        stated = [page.get(key, page.get(f"image_{key}")) for key in ("mean", "std")]
        if None in stated:
            continue
        mean, std = file.typed(stated, tuple[tuple[float, ...], tuple[float, ...]])
        if not _equal((mean, std), used):
            names = [name for name, each in known.items() if _equal((mean, std), each)]
            remedy = f"Set normalization={names[0]}" if names else "None of normalization= is that"
            raise OptionError(
                f"init_from={init_from!r}: its weights expect images normalized by mean {mean} and "
                f"deviation {std} ({path}), and the model has {used[0]} and {used[1]}. {remedy}."
            )
        side = page.get("input_size", page.get("size"))
        if str(size) not in re.findall(r"\d+", str(side)):
            log.info("%s: the weights are of images of size %s, these have %d", path, side, size)


def _equal(stated: Statistics, used: Statistics) -> bool:
    """One value is that of all channels."""
    return all(
        abs(there - here) < TOLERANCE
        for pair in zip(stated, used, strict=True)
        for there, here in zip_longest(*pair, fillvalue=pair[1][-1])
    )
