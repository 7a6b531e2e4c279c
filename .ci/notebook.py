"""Runs a notebook in a kernel of this interpreter, which needs ipykernel: python .ci/notebook.py
NOTEBOOK.

Its files go to the current directory. Also does what users do: runs all cells again, interrupts the
training, makes mistakes. Fails unless each of them shows what it should."""

import json
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

SECONDS = 600  # for one cell
STEPS = 300  # of the notebook's training
CODES = re.compile("\x1b\\[[0-9;]*m")
OF_A_MACHINE = re.compile(r"(?<![\w.])/(home|root|tmp|Users|content|work)/")


@dataclass
class Shown:
    """What a cell shows. displays: the texts of each display with an id, in order. error: the
    traceback's lines."""

    text: str = ""
    pictures: int = 0
    displays: dict[str, list[str]] = field(default_factory=dict)
    error: list[str] = field(default_factory=list)

    def add(self, kind: str, content: dict[str, Any]) -> None:
        """One message of the kernel."""
        if kind == "stream":
            self.text += content["text"]
        elif kind == "error":
            self.error = CODES.sub("", "\n".join(content["traceback"])).splitlines()
        elif kind in ("display_data", "update_display_data", "execute_result"):
            self.pictures += "image/png" in content["data"]
            name = content.get("transient", {}).get("display_id")
            if name is not None:
                assert (kind == "update_display_data") == (name in self.displays), (kind, name)
                self.displays.setdefault(name, []).append(content["data"]["text/plain"])

    @property
    def steps(self) -> list[int]:
        """The steps that the progress line showed, one after the other, in the same place."""
        lines = [line for lines in self.displays.values() for line in lines]
        assert len(self.displays) <= 1, self.displays
        return [int(re.match(r"step (\d+)/", line)[1]) for line in lines]


class Kernel:
    """A kernel, as a context manager."""

    def __enter__(self) -> "Kernel":
        self._manager, self._client = start_new_kernel(kernel_name="python3")
        return self

    def __exit__(self, *_: object) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=True)

    def run(self, code: str, while_running: Callable[[Shown], None] = lambda _: None) -> Shown:
        """Runs a cell. while_running: called after each message."""
        shown, begun = Shown(), time.monotonic()

        def add(message: dict[str, Any]) -> None:
            shown.add(message["msg_type"], message["content"])
            while_running(shown)

        self._client.execute_interactive(code, allow_stdin=False, output_hook=add, timeout=SECONDS)
        last = [list(lines)[-1] for lines in shown.displays.values()]
        shown.text = CODES.sub("", shown.text)
        title = f"--- {time.monotonic() - begun:.0f} s: {code.splitlines()[0]}"
        print(title, shown.text.strip(), *last, *shown.error, sep="\n", flush=True)
        return shown

    def interrupt(self) -> None:
        """What the button does."""
        self._manager.interrupt_kernel()


def cells_of(notebook: str) -> list[str]:
    """The code of its cells. Exits if a stored output is an error, or has a path of the machine
    that made it."""
    cells = [
        cell
        for cell in json.loads(Path(notebook).read_text())["cells"]
        if cell["cell_type"] == "code"
    ]
    for output in (output for cell in cells for output in cell["outputs"]):
        if output["output_type"] == "error" or OF_A_MACHINE.search("".join(output.get("text", ""))):
            sys.exit(
                f"{notebook} has an output with an error or a path: run it again, or clear it."
            )
    return ["".join(cell["source"]) for cell in cells]


def run_all(kernel: Kernel, cells: list[str]) -> dict[str, Shown]:
    """What each cell shows, by the code of the cell. No cell may fail."""
    shown = {code: kernel.run(code) for code in cells}
    assert not any(each.error for each in shown.values())
    return shown


def check_first(kernel: Kernel, shown: dict[str, Shown]) -> None:
    """The first run: progress in place, log lines once, pictures, a good model and a proven
    evaluation."""
    (training,) = (each for code, each in shown.items() if "trainer.train(" in code)
    assert len(training.steps) > 2, training.displays
    assert training.steps[-1] == STEPS, training.displays
    assert training.text.count(f"training steps 0 to {STEPS}") == 1, training.text
    # the images and the predictions
    assert [each.pictures for each in shown.values()].count(1) == 2, shown
    assert not any("━" in each.text for each in shown.values()), (
        "a progress bar, which a notebook repeats"
    )
    found = json.loads(
        kernel.run("import json; print(json.dumps([result.proven, result.metrics]))").text
    )
    assert found[0], found
    assert found[1]["accuracy"] >= 0.95, found


def check_again(shown: dict[str, Shown]) -> None:
    """All cells again, in the same kernel: finished work is not repeated."""
    text = "".join(each.text for each in shown.values())
    assert text.count("all finished before") == 2, text
    assert text.count("nothing to train") == 1, text


def check_interrupt(kernel: Kernel) -> None:
    """An interrupt during the training: it says so in a few lines, nothing is lost, and the kernel
    works as before."""
    kernel.run(
        "from dataclasses import replace\nendless = replace(recipe.trainer, max_steps=10**6)"
    )
    stopped = interrupted(
        kernel,
        "Trainer(recipe.task(), endless).train(recipe.train_input)",
        lambda shown: max(shown.steps, default=0) > STEPS,
    )
    assert stopped.text.count("interrupted: ending; a second Ctrl-C ends the process") == 1, (
        stopped.text
    )
    assert re.fullmatch(
        r"Interrupted: SIGINT; step \d+ is saved, and .* resumes from there", stopped.error[-1]
    )
    assert len(stopped.error) <= 6, stopped.error
    again = kernel.run(
        "print(Trainer(recipe.task(), endless).train(recipe.train_input, steps=20).start_step)"
    )
    assert int(again.text.splitlines()[-1]) > STEPS, again
    asleep = interrupted(
        kernel,
        "print('asleep')\nimport time\ntime.sleep(600)",
        lambda shown: "asleep" in shown.text,
    )
    assert asleep.error[-1].startswith("KeyboardInterrupt"), asleep.error


def interrupted(kernel: Kernel, code: str, ready: Callable[[Shown], bool]) -> Shown:
    """Runs a cell and interrupts it once it has shown what `ready` looks for."""
    asked = False

    def ask(shown: Shown) -> None:
        nonlocal asked
        if not asked and ready(shown):
            asked = True
            kernel.interrupt()

    return kernel.run(code, ask)


MISTAKES = [  # code, and how its error begins
    (
        "settings(workdir=RUN, max_steps=1, global_batch_size=0)",
        "OptionError: global_batch_size=0 must be",
    ),
    (
        "images.Config(data_dir=SHARDS, label_key='labels', trainer=recipe.trainer).task()",
        "OptionError: --label-key",
    ),
    ("open_dataset('shard', 'train')", "ManifestError: shard/manifest.json does not exist"),
    (
        "Trainer(recipe.task(), settings(workdir='elsewhere')).evaluate(recipe.eval_input)",
        "CheckpointError: ",
    ),
    (
        "def loss(variables, batch, rng, train):\n    return batch['picture'], variables, None\n"
        "task = replace(recipe.task(), loss_fn=loss)\n"
        "Trainer(task, settings(workdir='other', max_steps=1)).train(recipe.train_input)",
        "KeyError: 'picture'",
    ),
]


def check_mistakes(kernel: Kernel) -> None:
    """A mistake is an error of a few lines: those of the cell, and the message."""
    for code, message in MISTAKES:
        error = kernel.run(code).error
        assert any(line.startswith(message) for line in error), error
        assert len(error) <= 16, error


def main(notebook: str) -> None:
    """Runs and checks everything."""
    cells = cells_of(notebook)
    with Kernel() as kernel:
        check_first(kernel, run_all(kernel, cells))
        check_again(run_all(kernel, cells))
        check_interrupt(kernel)
        check_mistakes(kernel)


if __name__ == "__main__":
    main(sys.argv[1])
