"""`python -m trainer`: help, and one line for what the user can mend."""

import logging
import sys

import pytest

from pipeline.errors import OptionError
from trainer.__main__ import main
from trainer.commands.loading import naming_flags, recipe_class


@pytest.fixture(autouse=True)
def _quiet_logging():
    before = {
        name: logging.getLogger(name).level for name in ("trainer", "pipeline", "absl", "asyncio")
    }
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


def test_help_lists_the_recipes(capsys):
    assert main(["--help"]) == 0
    assert (
        "one of: digits, mnist, fashion_mnist, cifar10, images, imagenet_resnet50, imagenet_vit, tabular, char_lm, byte_lm;"
        in capsys.readouterr().out
    )


def test_messages_of_the_pipeline_are_shown_at_info_level(capsys):
    assert main(["digit"]) == 2
    assert logging.getLogger("pipeline").isEnabledFor(logging.INFO)


def test_an_error_that_only_jax_can_find_is_one_line_and_exit_code_2(capsys, tmp_path, monkeypatch):
    # there are no data
    monkeypatch.setattr("trainer.recipes.small_images.Digits.check", lambda config: None)
    assert (
        main(["digits", "--data-dir", "d", "--workdir", str(tmp_path), "--global-batch-size", "66"])
        == 2
    )
    (line,) = capsys.readouterr().err.splitlines()
    assert "error: global_batch=66 is not divisible by 4 devices" in line


def test_a_message_on_the_command_line_names_settings_as_flags():
    text = "init_strict=False allows it; check_padding=True or max_steps=3, seed, nesterov=True, 'seed=3', size_x=1"
    shown = "--no-init-strict allows it; --check-padding or --max-steps=3, seed, nesterov=True, 'seed=3', size_x=1"
    with pytest.raises(OptionError) as caught, naming_flags(recipe_class("images")):
        raise OptionError(text, "a second line of seed=1")
    assert str(caught.value).splitlines() == [shown, "a second line of --seed=1"]


def test_a_module_that_fails_is_imported_once(tmp_path, monkeypatch, capsys):
    (tmp_path / "fails_at_import.py").write_text(
        "from pipeline.errors import OptionError\nprint('imported')\nraise OptionError('no')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["fails_at_import"]) == 2
    assert capsys.readouterr().out.count("imported") == 1


def test_a_recipe_may_exit_the_program_while_its_flags_are_parsed(capsys, monkeypatch):
    def leaves(config):
        print("no licence", file=sys.stderr)
        sys.exit(7)

    monkeypatch.setattr("trainer.recipe.Recipe.__post_init__", leaves)
    with pytest.raises(SystemExit) as left:
        main(["digits", "--data-dir", "d", "--workdir", "w"])
    assert (left.value.code, capsys.readouterr().err) == (7, "no licence\n")


def test_ctrl_c_is_one_line_and_exit_code_130(capsys, monkeypatch, tmp_path):
    def interrupted(recipe, command):
        raise KeyboardInterrupt

    # there are no data
    monkeypatch.setattr("trainer.recipes.small_images.Digits.check", lambda config: None)
    monkeypatch.setattr("trainer.commands.running.run", interrupted)
    assert main(["digits", "--data-dir", "d", f"--workdir={tmp_path}/w"]) == 130
    printed = "interrupted; run the same command again: a run resumes from its newest checkpoint\n"
    assert capsys.readouterr().err == printed
