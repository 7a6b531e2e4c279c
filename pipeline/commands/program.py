"""The commands of infeed, and how the user started this one: `infeed train` or `python -m trainer`.

Usage lines, errors and help name commands in the same way. Depends only on the standard library. It
is imported before everything else, so that Ctrl-C while a command imports ends it with exit code
130, without a traceback."""

import contextlib
import os
import re
import select
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType

EXIT_INTERRUPTED = 130  # what shells report for a process ended by SIGINT
EXIT_NOT_READ = 141  # what shells report for a process ended by SIGPIPE
_by_infeed = False


def on_ctrl_c(number: int, frame: FrameType | None) -> None:
    """The signal handler. It raises nothing: a library could mistake an exception for a failed
    import."""
    del number, frame
    os.write(2, b"interrupted; run the same command again\n")
    os._exit(EXIT_INTERRUPTED)


def ctrl_c_exits() -> None:
    """Makes Ctrl-C exit immediately, unless SIGINT is ignored. For the first lines of a command."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, on_ctrl_c)


def ctrl_c_raises() -> bool:
    """Makes Ctrl-C raise KeyboardInterrupt again. Returns whether ctrl_c_exits was in effect."""
    left = signal.getsignal(signal.SIGINT) is on_ctrl_c
    if left:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return left


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


def version_of(package: str) -> str:
    """The version of an installed package; "" if it is not installed, as where we run from a
    checkout."""
    from importlib.metadata import PackageNotFoundError, version  # takes 30 ms

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


@contextlib.contextmanager
def ends_when_not_read() -> Iterator[None]:
    """The block ends in SystemExit(EXIT_NOT_READ), without a traceback, if nobody reads stdout, as
    after `| head`.

    What stdout cannot encode is printed as "?": under LC_ALL=C, that is all but ASCII."""
    # not a text file, or its descriptor was replaced
    with contextlib.suppress(AttributeError, OSError):
        sys.stdout.reconfigure(errors="replace")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # or the interpreter would, where nothing can catch the error
    except BrokenPipeError:
        if not _is_closed(sys.stdout.fileno()):
            raise  # another pipe is meant
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # for what stdout still holds
        os.close(nowhere)
        sys.exit(EXIT_NOT_READ)


def _is_closed(descriptor: int) -> bool:
    """Whether it is a pipe or socket without a reader."""
    state = select.poll()
    state.register(descriptor, 0)  # errors are always reported
    return bool(state.poll(0))
