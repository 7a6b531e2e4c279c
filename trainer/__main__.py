"""`python -m trainer RECIPE [options]`: runs a recipe, ours or a user's. User errors are short and
exit with code 2."""

if __name__ == "__main__":
    from pipeline.console.interrupts import ctrl_c_exits

    ctrl_c_exits()  # before the imports: they take seconds

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pipeline import logs
from pipeline.console.commands import as_started, command_of, help_end, program
from pipeline.console.interrupts import Exit, ctrl_c_raises, ends_when_not_read
from pipeline.errors import HostError, InfeedError, printable
from pipeline.packages import how_to_install
from pipeline.user_code import described, notes_of, source_lines
from trainer.commands import RECIPES, is_ours
from trainer.hosts import exits
from trainer.reports.segments import Invocation

if TYPE_CHECKING:
    from trainer.recipe import Recipe


def main(arguments: list[str]) -> int:
    """Runs the recipe named by the first argument; returns the exit code."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_help())
        return 0
    logs.show()
    name, *options = arguments
    try:
        from trainer.commands.loading import naming_flags, recipe_class

        kind = recipe_class(name)
        with naming_flags(kind):
            _run(kind, name, options)
    except InfeedError as error:
        notes = "".join(f" ({printable(note)})" for note in notes_of(error))
        exits.print_last(f"error: {as_started(str(error))}{notes}")
        return Exit.HOST_FAILED if isinstance(error, HostError) else Exit.ERROR
    except exits.Preempted as preempted:
        exits.print_last(f"preempted: {preempted}")
        return Exit.PREEMPTED
    except exits.Interrupted as interrupted:
        exits.print_last(f"interrupted: {interrupted}")
        return Exit.INTERRUPTED
    except KeyboardInterrupt:
        exits.print_last(
            "interrupted; run the same command again: a run resumes from its newest checkpoint"
        )
        return Exit.INTERRUPTED
    except Exception as error:
        if (message := _of_user(error)) is None:
            raise
        exits.print_last(f"error: {message}")
        return Exit.ERROR
    return Exit.DONE


def _help() -> str:
    from trainer.commands.loading import SEE_ALSO, WITH_DATA, WITHOUT_DATA

    examples = [f"mnist {WITHOUT_DATA}", f"images {WITH_DATA}"]
    lines = (
        f"usage: {program('trainer')} RECIPE [options]\n",
        f"{command_of('trainer').purpose}\n",
        (
            f"RECIPE is one of: {', '.join(RECIPES)}; or a recipe of your own, MODULE:CLASS, from "
            "the current directory,"
        ),
        (
            "PYTHONPATH or what is installed. MODULE alone means its class Config: see "
            "docs/recipes.md."
        ),
        "RECIPE --help lists the options of a recipe.\n",
        help_end(program("trainer"), examples, SEE_ALSO),
    )
    return "\n".join(lines)


def _of_user(error: Exception) -> str | None:
    """What to print of an error in a recipe's own code, or of a missing library; None if the
    mistake may be ours."""
    from trainer.commands.loading import lacks_library

    if lacks_library(error):
        message = f"{str(error).rstrip('.')}."
        if "pip install" not in message:
            message += f" Install what training needs: {how_to_install('train')}."
        return message
    frames = source_lines(error)
    if not frames:
        return None
    return f"{printable(described(error))}\n{printable(frames[-1])}"


def _run(kind: "type[Recipe]", name: str, options: Sequence[str]) -> None:
    from trainer.commands.loading import parsed
    from trainer.commands.recorded import as_trained
    from trainer.hosts.joining import join

    recipe, devices, distributed = parsed(kind, options, f"{program('trainer')} {name}")
    recipe, options = as_trained(recipe, name, options)
    alone = distributed.coordinator_address is None
    if alone:  # one of several hosts may fail alone, and has to tell the others
        _check(recipe)
    devices.choose()
    join(distributed, recipe.trainer.host_timeout_seconds)
    devices.check()
    from trainer.hosts.supervisor import Supervisor

    with Supervisor().reporting():
        if not alone:
            ctrl_c_raises()  # Ctrl-C raises, because the others have to be told
            _check(recipe)
        from trainer.commands.running import run

        run(recipe, Invocation(name, list(options), str(Path.cwd())))


def _check(recipe: "Recipe") -> None:
    from trainer.checkpointing.owner import check_writable

    recipe.check()
    if recipe.mode == "train" and not recipe.show_state:
        check_writable(recipe.trainer.workdir)  # last: it creates the directory


def start(arguments: list[str]) -> NoReturn:
    """Runs main as the program of this process."""
    sys.unraisablehook = _report
    if arguments and not arguments[0].startswith("-") and not is_ours(arguments[0]):
        with contextlib.suppress(FileNotFoundError):  # the current directory was removed
            if (here := str(Path.cwd())) not in sys.path:
                # a recipe of the user's may be there; last, so that it replaces no package
                sys.path.append(here)
    try:
        with ends_when_not_read():
            code = main(arguments)
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        code = Exit.BUG
    exits.end(code)


def _report(unraisable: Any) -> None:
    # tensorstore reports to Orbax's event loop after a failed save: a traceback for every array.
    if str(unraisable.exc_value) != "Event loop is closed":
        sys.__unraisablehook__(unraisable)


if __name__ == "__main__":
    start(sys.argv[1:])
