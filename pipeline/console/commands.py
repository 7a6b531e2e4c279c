"""The commands of infeed, and how the user started this one: `infeed train` or `python -m trainer`.

Usage lines, errors and help name commands in the same way. Depends only on the standard library."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_by_infeed = False


@dataclass(frozen=True)
class Command:
    """`infeed <words>` runs `module`. purpose: one line of help."""

    words: str
    module: str
    purpose: str


COMMANDS: Mapping[str, Sequence[Command]] = {
    "Convert raw data to shards": (
        Command(
            "convert imagenet",
            "converters.imagenet_to_gcs",
            "Converts ImageNet: original tars, extracted, or from Kaggle.",
        ),
        Command(
            "convert images",
            "converters.image_folder_to_gcs",
            "Converts folders of images, one per class; also zip and tar.",
        ),
        Command(
            "convert table",
            "converters.table_to_gcs",
            "Converts tables: csv, tsv, jsonl, Parquet or Arrow.",
        ),
        Command(
            "convert text",
            "converters.text_to_gcs",
            "Packs documents into rows of tokens for language models.",
        ),
        Command(
            "convert idx", "converters.idx_to_gcs", "Converts MNIST and its family, as downloaded."
        ),
        Command(
            "convert cifar",
            "converters.cifar_to_gcs",
            "Converts CIFAR-10 or CIFAR-100, the binary version.",
        ),
        Command(
            "convert tfds", "converters.tfds_to_gcs", "Re-shards a dataset of TensorFlow Datasets."
        ),
        Command(
            "convert tfrecord",
            "converters.tfrecord_to_gcs",
            "Re-shards TFRecord files, compressed or not.",
        ),
        Command(
            "index",
            "pipeline.commands.index",
            "Makes TFRecord files readable as a dataset where they are.",
        ),
    ),
    "Look at shards": (
        Command(
            "describe",
            "pipeline.commands.describe",
            "Shows a dataset: schema, splits, shards, labels, records.",
        ),
        Command(
            "verify",
            "pipeline.commands.verify",
            "Reads every byte of a dataset and lists all that is damaged.",
        ),
    ),
    "Train": (
        Command("train", "trainer", "Runs a recipe: trains, evaluates or predicts."),
        Command(
            "predict",
            "trainer.commands.predict",
            "Predicts images or rows that were never converted.",
        ),
        Command("checkpoints", "trainer.checkpoints", "Lists the checkpoints of a work directory."),
        Command(
            "report",
            "trainer.commands.report",
            "Prints the state, metrics, proof and speed of a run.",
        ),
        Command(
            "export-weights",
            "trainer.commands.export_weights",
            "Writes weights for timm, transformers or torchvision.",
        ),
        Command("seen", "trainer.commands.seen", "Lists the records that a training step saw."),
    ),
    "Try infeed": (
        Command(
            "digits",
            "converters.digits_raw",
            "Writes real handwritten digits as raw data of ImageNet.",
        ),
    ),
}
ALL_COMMANDS = [command for group in COMMANDS.values() for command in group]
_BY_MODULE = {command.module: command for command in ALL_COMMANDS}
_MODULE = re.compile(r"python -m (\w+(?:\.\w+)*)")


def command_of(module: str) -> Command:
    """The command that a module is. KeyError if it is none."""
    return _BY_MODULE[module]


def started_by_infeed() -> None:
    """Makes `program` name commands of `infeed`."""
    global _by_infeed
    _by_infeed = True


def program(module: str) -> str:
    """How the user of this process starts a module: `infeed train` or `python -m trainer`. Most are
    only commands."""
    by_module = module == "trainer" or module.startswith("converters.")
    return (
        f"python -m {module}"
        if by_module and not _by_infeed
        else f"infeed {command_of(module).words}"
    )


def as_started(text: str) -> str:
    """A text that names commands as `python -m MODULE`: it names them as the user of this process
    starts them."""
    return _MODULE.sub(
        lambda match: program(match[1]) if match[1] in _BY_MODULE else match[0], text
    )


def help_end(command: str, examples: Sequence[str], see_also: Sequence[str]) -> str:
    """The last lines of help. command: how it is started. examples: options that work. see_also:
    modules."""
    lines = [f"  {command} {options}".rstrip() for options in examples]
    return "\n".join(["examples:", *lines, "", f"see also: {', '.join(map(program, see_also))}"])
