"""`python -m trainer <recipe> [options]`: runs a recipe. Errors of the user are one line and exit code 2."""

import importlib
import logging
import sys
from dataclasses import make_dataclass
from typing import Any, NoReturn

from pipeline.shards.errors import HostError, InfeedError, OptionError, did_you_mean, printable
from pipeline.shards.installing import how_to_install
from trainer.exits import EXIT_HOST_FAILED, EXIT_PREEMPTED, EXIT_USER_ERROR, Preempted, end, is_apart

JAX_NOTE = "-----"  # how it begins what it adds to an error inside a program: that its own frames are left out
# The module of each, and beside it <module>_config with its flags: --help needs no JAX.
RECIPES = {"digits": "trainer.recipes.digits", "images": "trainer.recipes.images"}


def main(arguments: list[str]) -> int:
    """Runs the recipe that the first argument names; the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"usage: python -m trainer RECIPE [--help] [options]\n\nRecipes: {', '.join(RECIPES)}")
        return 0
    logging.basicConfig(format="%(message)s", level=logging.WARNING, stream=sys.stderr)
    for ours in ("trainer", "pipeline"):
        logging.getLogger(ours).setLevel(logging.INFO)
    for orbax in ("absl", "asyncio"):  # it logs a failure several times, with the stacks of its threads; then raises it
        logging.getLogger(orbax).setLevel(logging.CRITICAL)
    name, *options = arguments
    try:
        if name not in RECIPES:
            raise OptionError(f"there is no recipe {name!r}.{did_you_mean(name, RECIPES)}")
        from trainer.cluster.devices import Devices, check, choose
        from trainer.cluster.distributed import Distributed, join
        from trainer.recipes.flags import parsed

        config = importlib.import_module(f"{RECIPES[name]}_config").Config
        fields = [("recipe", config), ("devices", Devices, Devices())]
        fields += [("distributed", Distributed, Distributed())]
        given = parsed(make_dataclass("Flags", fields), options, f"python -m trainer {name}", config.__doc__ or "")
        alone = given.distributed.coordinator_address is None
        if alone:  # of several hosts one may fail alone, and has to tell the others
            given.recipe.check()
        choose(given.devices)
        join(given.distributed)
        check(given.devices)
        from trainer.cluster.watchdog import telling_others

        with telling_others():
            if not alone:
                given.recipe.check()
            importlib.import_module(RECIPES[name]).run(given.recipe)
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
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the newest checkpoint", file=sys.stderr)
        return 130
    return 0


def start(arguments: list[str]) -> NoReturn:
    """Runs main as what this process is for."""
    sys.unraisablehook = _report
    end(main(arguments))


def _report(unraisable: Any) -> None:
    # What tensorstore tells to Orbax's event loop after a save has failed: a traceback for every array.
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    start(sys.argv[1:])
