"""What published weights say of the images that they expect, in a file of the same directory."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.logs import logger
from pipeline.shards.typed_json import JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file

FILES = ("config.json", "preprocessor_config.json")  # of timm, of transformers
Rgb = tuple[float, float, float]

log = logger("trainer")


def check_images(init_from: str, used: Any, known: Mapping[str, Any]) -> None:
    """Logs the images that weights expect, if a file describes them. Raises OptionError if they are
    normalized otherwise than those of the model, CheckpointError for a damaged file.

    used: means and deviations. known: those that normalization= can choose, by name."""
    is_file = init_from.endswith(".safetensors")
    directory = (init_from.rpartition("/")[0] or ".") if is_file else init_from
    for path in (join(directory, name) for name in FILES):
        file = JsonFile(path, CheckpointError, "Copy it again, or remove it.")
        page = file.read(read_file(open_storage(path), path) or "{}", dict[str, Any])
        page = file.typed(page.get("pretrained_cfg", page), dict[str, Any])
        stated = [page.get(key, page.get(f"image_{key}")) for key in ("mean", "std")]
        if None in stated:
            continue
        size = page.get("input_size", page.get("size"))
        mean, std = file.typed(stated, tuple[Rgb, Rgb])
        # whatever the file has there, on one line
        expected = f"images of size {size!r:.60}, mean {list(mean)} and deviation {list(std)}"
        log.info("init_from %s: %s describes %s", init_from, path, expected)
        names = [name for name in known if np.allclose((mean, std), known[name], atol=1e-3)]
        if not np.allclose((mean, std), used, atol=1e-3):
            remedy = f"Set normalization={names[0]}" if names else "No normalization= is theirs"
            raise OptionError(
                f"init_from={init_from!r}: the weights expect {expected} ({path}), but the model's "
                f"are {used[0]} and {used[1]}. {remedy}."
            )
