"""What an export says of itself, in its assets.extra/infeed.json: for clients, and for people who find it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.shards.schema import Labels
from trainer.config import Model
from trainer.exporting.publishing import DESCRIPTION, EXTRA
from trainer.exporting.saved_model import Signature

__all__ = ["Description", "Origin", "signature_facts", "write_description"]


@dataclass(frozen=True)
class Origin:
    """The model that is exported. step, workdir: of which checkpoint of which training. metrics: of its evaluation, if
    they are known. model: which of its parameters. fingerprint: of the data that it was verified on."""

    step: int
    workdir: str
    metrics: Mapping[str, float]
    model: Model = "params"
    fingerprint: str = ""


@dataclass(frozen=True)
class Description:
    """origin: see Origin. signatures: see signature_facts. labels: prediction -> the class names of its numbers.
    versions: of the libraries that made it. verified: with how many records, in which batch sizes, with which tolerance
    and which largest difference. assets_extra: the names of the files copied into the same directory."""

    origin: Origin
    signatures: Mapping[str, Any]
    labels: Mapping[str, Labels]
    versions: Mapping[str, str]
    verified: Mapping[str, Any]
    assets_extra: Sequence[str]


def signature_facts(signatures: Mapping[str, Signature], predictions: Mapping[str, Any]) -> dict[str, Any]:
    """Per signature its inputs, argument -> name, shape and dtype; and the predictions, name -> shape and dtype."""
    outputs = {
        name: {"shape": list(value.shape[1:]), "dtype": _dtype(value.dtype)} for name, value in predictions.items()
    }
    facts = {}
    for name, signature in signatures.items():
        inputs = {
            argument: {"name": signature.inputs[argument], "shape": list(spec.shape[1:]), "dtype": spec.dtype.name}
            for argument, spec in signature.specs.items()
        }
        facts[name] = {"inputs": inputs, "predictions": outputs}
    return facts


def write_description(saved_model: Path, description: Description) -> None:
    """Writes the file; other files in assets.extra stay."""
    directory = saved_model / EXTRA
    directory.mkdir(exist_ok=True)
    (directory / DESCRIPTION).write_text(json.dumps(asdict(description), indent=1) + "\n", encoding="utf-8")


def _dtype(dtype: Any) -> str:
    return "string" if np.dtype(dtype).kind == "O" else str(dtype)
