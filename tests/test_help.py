"""The help of every command: what it is for, and two examples, which are run."""

import contextlib
import functools
import io
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest
from converter_rows import CONVERTERS
from infeed_door import SCRIPT, run_infeed
from raw_data import examples
from raw_data.imagenet import RawImagenet
from stages import Stages

from beam_jobs import graph
from converters import imagenet_to_gcs
from pipeline.console import commands
from pipeline.console.commands import COMMANDS
from trainer.__main__ import RECIPES
from trainer.__main__ import main as trainer_main

PURPOSES = {command.words: command.purpose for group in COMMANDS.values() for command in group}
EXAMPLES = {f"convert {row.command}": row.example for row in CONVERTERS.values() if row.example}
NEED_A_TRAINING = ("train", "predict", "checkpoints", "report", "export-weights", "seen")
IN = f"import os, sys\nos.chdir(sys.argv.pop(1))\n{SCRIPT}"
NOT_READ = """
import os, sys, warnings
warnings.simplefilter("ignore")  # runpy's, in a forked process
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
sys.stdout.reconfigure(line_buffering=False, write_through=False)
"""
# runpy warns of modules that tests of this process have imported before.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*found in sys.modules"),
    pytest.mark.usefixtures("without_beam"),
]


@pytest.fixture
def infeed(monkeypatch, capsys):
    """infeed("verify", "DIR"): (exit code, stdout, stderr) of the command in this process."""
    return functools.partial(run_infeed, monkeypatch, capsys)


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Shards of ImageNet's schema in "shards", and as TFDS has them in "tensorflow_datasets". Do not change them."""
    directory = tmp_path_factory.mktemp("shards")
    examples.imagenet(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "pipeline_of", Stages)
        for options in (["shards"], ["tensorflow_datasets", "--schema=tfds"]):
            raw = f"--raw-data-dir={directory}/ILSVRC2012"
            imagenet_to_gcs.main([raw, f"--output={directory}/{options[0]}", *options[1:]])
    return directory


@pytest.fixture
def work(tmp_path, monkeypatch, shards):
    """work(words): changes to a directory with all that the examples of a command name."""

    def change(words):
        monkeypatch.chdir(tmp_path)
        if words in EXAMPLES:
            EXAMPLES[words](tmp_path)
        elif words in ("describe", "verify"):
            shutil.copytree(shards / "shards", tmp_path / "shards")
        elif words == "convert tfds":
            shutil.copytree(shards / "tensorflow_datasets", tmp_path / "tensorflow_datasets")
        elif words in ("convert tfrecord", "index"):
            (tmp_path / "tfrecords").mkdir()
            for path in (shards / "shards").glob("*-of-*"):
                shutil.copy(path, tmp_path / "tfrecords")
        return tmp_path

    return change


def examples_of(shown):
    """The two commands in a help, and the commands that it names below them."""
    assert shown.count("\nexamples:\n") == 1, shown
    lines = shown.partition("\nexamples:\n")[2].splitlines()
    assert len(lines) == 4, lines
    assert lines[2] == "", lines
    assert lines[3].startswith("see also: infeed "), lines
    return [shlex.split(line) for line in lines[:2]], lines[3].removeprefix("see also: ").split(
        ", "
    )


@pytest.mark.parametrize("words", [words for words in PURPOSES if words not in NEED_A_TRAINING])
def test_the_help_of_a_command_says_its_purpose_first_and_both_of_its_examples_work(
    infeed, work, words
):
    status, shown, _ = infeed(*words.split(), "--help")
    assert status == 0
    assert shown.startswith(f"usage: infeed {words}")
    assert shown.split("\n\n")[1] == PURPOSES[words]
    examples, others = examples_of(shown)
    assert {other.removeprefix("infeed ") for other in others} <= {*PURPOSES}
    work(words)
    for example in examples:
        status, printed, failed = infeed(*example[1:])
        assert status == 0, (example, printed, failed)


@pytest.mark.parametrize("words", [[], ["convert"]])
def test_the_lists_of_commands_end_with_examples_that_work(infeed, work, tmp_path, words):
    _, shown, _ = infeed(*words, "--help")
    assert infeed(*words)[1] == shown
    listed = {line.split("  ")[1] for line in shown.splitlines() if re.match("  [a-z]", line)}
    assert {each for each in listed if not each.startswith("infeed ")} == {
        each for each in PURPOSES if each.startswith(" ".join(words))
    }
    assert max(len(line) for line in shown.partition("\nexamples:")[0].splitlines()) <= 80
    work("convert images" if words else "")
    RawImagenet(tmp_path / "raw").write()
    for example in examples_of(shown)[0]:
        assert example == ["infeed", "digits", "raw"] or infeed(*example[1:])[0] == 0, example


@pytest.fixture(scope="module")
def train_help():
    """train_help("digits", "--help"): what `infeed train digits --help` shows."""

    @functools.cache
    def shown(*arguments):
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(io.StringIO()) as printed,
            contextlib.suppress(SystemExit),
        ):
            patch.setattr(commands, "_by_infeed", True)
            patch.setenv("COLUMNS", "80")
            assert trainer_main([*arguments]) == 0
        return printed.getvalue()

    return shown


def test_the_help_of_the_trainer_and_of_its_tools_ends_with_examples_that_ci_runs(
    train_help, infeed
):
    """`.ci/run` runs them: a training takes ten seconds of CPU time."""
    of_recipes = [
        example for recipe in RECIPES for example in examples_of(train_help(recipe, "--help"))[0]
    ]
    assert all(example[:2] == ["infeed", "train"] for example in of_recipes)
    assert all(example in of_recipes for example in examples_of(train_help("--help"))[0])
    for words in NEED_A_TRAINING[1:]:
        shown = infeed(words, "--help")[1]
        assert shown.split("\n\n")[1] == PURPOSES[words]
        assert examples_of(shown)[0][0][:3] == ["infeed", words, "model"]


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_help_of_a_recipe_shows_what_people_use_and_names_the_help_that_shows_all(
    train_help, recipe
):
    shown, everything = (train_help(recipe, each) for each in ("--help", "--help-all"))
    flags, every = (
        {*re.findall(r"^[│ ] (--[a-z0-9-]+)", text, re.MULTILINE)} for text in (shown, everything)
    )
    lengths = {"--max-steps", "--max-epochs"}
    assert {"--data-dir", "--workdir", "--learning-rate", "--mode"} | lengths <= flags <= every
    assert len(flags) <= 31
    assert len(every) > 60
    assert shown.startswith(f"usage: infeed train {recipe} ")
    assert f"infeed train {recipe} --help-all lists all flags." in shown
    assert "--help-all" not in everything


def test_flags_of_recipes_are_described_in_sentences_that_only_the_width_breaks(train_help):
    shown = train_help("digits", "--help")
    words = " ".join(re.sub("[│╭╮╰╯─]", " ", shown).split())
    assert "--mode {train,evaluate,evaluate-continuously,predict,export,sample}" in words
    assert "A run that finds a checkpoint there resumes from it. One training run owns it" in words
    assert not re.search(r" resumes from[ │]*\n", shown)  # where the source has a line break


@pytest.mark.parametrize("words", [["--help"], ["train", "digits", "--help"], ["describe", "."]])
def test_a_command_whose_output_is_closed_exits_with_141_and_no_traceback(
    run_forked, shards, words
):
    assert run_forked(["-c", NOT_READ + IN, str(shards / "shards"), *words], timeout=60) == (
        141,
        "",
    )


def test_a_terminal_that_knows_only_ascii_gets_question_marks_rather_than_a_traceback(shards):
    ascii_only = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "pipeline.commands.describe", str(shards / "shards")]
    done = subprocess.run(command, env=ascii_only, capture_output=True, timeout=60, check=True)
    assert done.stdout.isascii()
    assert b"?" in done.stdout
    assert done.stderr == b""
