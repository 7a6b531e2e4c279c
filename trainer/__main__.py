"""`python -m trainer <recipe> [options]`: runs a recipe. User errors are one line and exit code 2."""

if __name__ == "__main__":
    from pipeline.ctrl_c import leave_at_once

    leave_at_once()  # before the imports: they take seconds

import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import make_dataclass
from typing import Any, NoReturn

from pipeline.errors import HostError, InfeedError, OptionError, did_you_mean, printable
from pipeline.installing import how_to_install
from pipeline.tools.program import command_of, ends_when_not_read, help_end, program
from trainer.exits import (
    EXIT_HOST_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PREEMPTED,
    EXIT_USER_ERROR,
    Interrupted,
    Preempted,
    end,
    is_apart,
)
from trainer.interrupts import FirstOne, Interrupts

NOTHING_LOST = "SIGINT; all progress is saved, and the same command resumes from there"
JAX_NOTE = "-----"  # starts the note that JAX adds to an error in a program, about its own stack frames
# Modules by name. The flags of each are in <module>_config, so --help needs no JAX.
RECIPES = {"digits": "trainer.recipes.digits", "images": "trainer.recipes.images"}


def main(arguments: list[str], interrupts: Interrupts | None = None) -> int:
    """Runs the recipe named by the first argument; returns the exit code. interrupts: listens to Ctrl-C, if given."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for ours in ("trainer", "pipeline"):
        logging.getLogger(ours).setLevel(logging.INFO)
    for orbax in ("absl", "asyncio"):  # it logs a failure several times with stacks, then raises it
        logging.getLogger(orbax).setLevel(logging.CRITICAL)
    name, *options = arguments
    try:
        _run(name, options, interrupts)
    except ModuleNotFoundError as error:
        hint = "" if "pip install" in str(error) else f" Install what training needs: {how_to_install('train')}."
        print(f"error: {str(error).rstrip('.')}.{hint}", file=sys.stderr)
        return EXIT_USER_ERROR
    except InfeedError as error:
        ours = [note for note in getattr(error, "__notes__", ()) if not note.startswith(JAX_NOTE)]
        notes = "".join(f" ({printable(note)})" for note in ours)
        print(f"error: {error}{notes}", file=sys.stderr)
        return EXIT_HOST_FAILED if isinstance(error, HostError) and is_apart() else EXIT_USER_ERROR
    except Preempted as preempted:
        print(f"preempted: {preempted}", file=sys.stderr)
        return EXIT_PREEMPTED
    except Interrupted as interrupted:
        print(f"interrupted: {interrupted}", file=sys.stderr)
        return EXIT_INTERRUPTED
    except KeyboardInterrupt:
        print("interrupted; the same command resumes from the newest checkpoint", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _help() -> str:
    examples = [f"{name} --data-dir=shards --workdir=model --fast-dev-run=1" for name in RECIPES]
    lines = [f"usage: {program('trainer')} RECIPE [options]", "", command_of("trainer").purpose]
    lines += ["", f"Recipes: {', '.join(RECIPES)}. RECIPE --help lists the options of a recipe.", ""]
    return "\n".join([*lines, help_end(program("trainer"), examples, ("trainer.checkpoints", "pipeline.describe"))])


def _run(name: str, options: Sequence[str], interrupts: Interrupts | None) -> None:
    if name not in RECIPES:
        raise OptionError(f"there is no recipe {name!r}.{did_you_mean(name, RECIPES)}")
    from trainer.cluster.devices import Devices, check, choose
    from trainer.cluster.distributed import Distributed, join
    from trainer.recipes.config import parsed

    config = importlib.import_module(f"{RECIPES[name]}_config").Config
    fields = [("recipe", config), ("devices", Devices, Devices())]
    fields += [("distributed", Distributed, Distributed())]
    given = parsed(make_dataclass("Flags", fields), options, f"{program('trainer')} {name}", config.__doc__ or "")
    alone = given.distributed.coordinator_address is None
    if alone:  # one of several hosts may fail alone, and has to tell the others
        given.recipe.check()
    choose(given.devices)
    join(given.distributed)
    check(given.devices)
    from trainer.cluster.host_watchdog import telling_others

    with telling_others():
        if interrupts and not alone:
            interrupts.first = FirstOne.RAISES  # the others have to be told
        if not alone:
            given.recipe.check()
        recipe = importlib.import_module(RECIPES[name])
        if interrupts:
            interrupts.check()
        recipe.run(given.recipe)


def start(arguments: list[str]) -> NoReturn:
    """Runs main as the program of this process."""
    sys.unraisablehook = _report
    words = "interrupted; run the same command again"
    interrupts = Interrupts(FirstOne.LEAVES, words, error=lambda: Interrupted(NOTHING_LOST))
    interrupts.__enter__()
    with ends_when_not_read():
        code = main(arguments, interrupts)
    interrupts.first = FirstOne.LEAVES
    end(code)


def _report(unraisable: Any) -> None:
    # tensorstore reports to Orbax's event loop after a failed save: a traceback for every array.
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    start(sys.argv[1:])
