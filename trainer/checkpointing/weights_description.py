"""What the files that published weights come with state of the images and of the model."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import CheckpointError, OptionError
from pipeline.shards.typed_json import Json, JsonFile
from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import join, read_file

FILES = ("config.json", "preprocessor_config.json")  # of timm; both of transformers
SIZES = ("input_size", "crop_size", "size", "image_size")
MOST_PIXELS = 4096  # a file may state any number, and images of that size are made
HEADS = ("num_attention_heads", "num_heads")
Rgb = tuple[float, float, float]


class Described(NamedTuple):
    """What the files beside the weights of init_from state; None: nothing.

    size: of a side of the images, in pixels. statistics: means and deviations of their channels.
    normalization: their name, if they are known. heads: of each attention."""

    init_from: str
    size: int | None
    statistics: tuple[Rgb, Rgb] | None
    normalization: str | None
    heads: int | None

    def __str__(self) -> str:
        stated = []
        if self.size:
            stated.append(f"images of {self.size} pixels")
        if self.statistics:
            mean, deviation = map(list, self.statistics)
            stated.append(f"mean {mean} and deviation {deviation}")
        if not stated:
            return f"no {' or '.join(FILES)} states which images the weights expect"
        return f"the weights expect {', '.join(stated)}"

    def check(self, normalization: str, heads: int | None) -> None:
        """Raises OptionError if the weights were trained with another normalization or number of
        heads than the model's, which their arrays do not show."""
        if self.statistics and self.normalization != normalization:
            name = self.normalization
            remedy = f"Set normalization={name}" if name else "No normalization= is theirs"
            raise OptionError(
                f"init_from={self.init_from!r}: {self}, but the model's normalization is "
                f"{normalization}. {remedy}."
            )
        if heads and self.heads not in (None, heads):
            raise OptionError(
                f"init_from={self.init_from!r}: the weights have {self.heads} heads, and the model "
                f"has {heads}, which the shapes of arrays do not show. Choose another model."
            )


def described(init_from: str, known: Mapping[str, Any]) -> Described:
    """What config.json or preprocessor_config.json states. known: statistics by name. Raises
    CheckpointError for a damaged file."""
    is_file = init_from.endswith(".safetensors")
    directory = (init_from.rpartition("/")[0] or ".") if is_file else init_from
    size = statistics = heads = None
    for path in (join(directory, name) for name in FILES):
        file = JsonFile(path, CheckpointError, "Copy it again, or remove it.")
        page = file.read(read_file(open_storage(path), path) or "{}", Json)
        for part in ("pretrained_cfg", "model_args"):  # of timm
            page |= file.typed(page.get(part, {}), Json)
        stated = [page.get(key, page.get(f"image_{key}")) for key in ("mean", "std")]
        if None not in stated:
            statistics = statistics or file.typed(stated, tuple[Rgb, Rgb])
        size = size or _side(next(filter(None, map(page.get, SIZES)), None))
        heads = heads or next((n for key in HEADS if type(n := page.get(key)) is int), None)
    names = [
        name for name in known if statistics and np.allclose(statistics, known[name], atol=1e-3)
    ]
    return Described(init_from, size, statistics, names[0] if names else None, heads)


def _side(size: Any) -> int | None:
    """Of square images, from a number, [channels, height, width] or {"height": ..., "width": ...};
    None for anything else, or more than MOST_PIXELS."""
    if isinstance(size, dict | list):
        sides = [*size.values()] if isinstance(size, dict) else size[1:]
        size = sides[0] if sides and sides.count(sides[0]) == len(sides) else None
    return size if type(size) is int and 0 < size <= MOST_PIXELS else None
