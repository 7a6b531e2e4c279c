"""The settings of a warm start, as flags, but for those that are Fixed: a recipe sets them."""

import re
from dataclasses import dataclass
from typing import Literal, get_args

from tyro.conf import Fixed

from pipeline.checks import check_choice
from pipeline.console.fields import shows_fields
from pipeline.errors import OptionError
from trainer.checkpointing.mappings import WeightMapping, expression

Mismatch = Literal["error", "skip"]


@shows_fields
@dataclass(frozen=True, kw_only=True)
class WarmStart:
    """Where the model's first values come from: a field of a recipe, whose fields become flags.

    Patterns such as "backbone/*" match the names of the model's arrays, which --show-state lists.
    They match the arrays of the checkpoint, too, once init_rename has given them the model's
    names."""

    init_from: str | None = None
    """Begin with the arrays of this checkpoint: a work directory or one of its checkpoints, a
    checkpoint of Orbax, safetensors (a file or directory), or a TensorFlow checkpoint. Ignored once
    the work directory has a checkpoint."""
    init_include: Fixed[tuple[str, ...]] = ("*",)
    """Patterns of the arrays to load."""
    init_exclude: tuple[str, ...] = ()
    """Patterns of arrays not to load, such as the head of a new classifier."""
    init_rename: tuple[str, ...] = ()
    """The model's names for arrays of the checkpoint: "encoder.layer.*.weight=layers/*/kernel".
    Each * keeps what it matches, as little as possible. The first pattern that matches counts."""
    init_torch: tuple[str, ...] = ()
    """Patterns of kernels in PyTorch's layout, [out, in, ...], to be turned into [..., in, out]."""
    init_mapping: Fixed[WeightMapping | None] = None
    """A table of the checkpoint's names and layouts, as trainer.checkpointing.mappings has them for
    published weights. Default: the one that knows most names, unless init_rename or init_torch is
    given."""
    init_mismatch: Fixed[Mismatch] = "error"
    """What to do with an array of another shape or kind of number. skip: keep the fresh one."""
    init_strict: bool = True
    """Fail if an array is missing in the checkpoint or in the model and not excluded."""
    init_ema: Fixed[bool] = True
    """Take the averaged parameters of a checkpoint of infeed, if it has them."""

    def __post_init__(self) -> None:
        check_choice("init_mismatch", self.init_mismatch, get_args(Mismatch))
        _ = self.renames

    @property
    def renames(self) -> tuple[tuple[str, re.Pattern[str], str], ...]:
        """Each init_rename: its pattern as given and as a regular expression, and the
        replacement.

        Raises OptionError for another form."""
        pairs = []
        for text in self.init_rename:
            pattern, equals, replacement = text.partition("=")
            if not (pattern and equals and replacement) or replacement.count("*") > pattern.count(
                "*"
            ):
                raise OptionError(
                    f"init_rename={text!r} must be a pattern and a name, such as 'encoder/*=*', "
                    "with at most as many * in the name as in the pattern."
                )
            pairs.append((pattern, expression(pattern), replacement))
        return tuple(pairs)
