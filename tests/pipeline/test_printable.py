"""What is said of names: no error, console or log hands their control characters on."""

import io
import json
import logging
import pickle
import re
from pathlib import Path

import pytest
from rich.live import Live
from rich.table import Table

import pipeline
from pipeline.commands import describe, verify
from pipeline.console.console import Console, say
from pipeline.datasets import eval_dataset
from pipeline.errors import ConversionError, InfeedError, OptionError, StorageError, printable
from pipeline.logs import logger
from trainer import checkpoints

BAD = "\x1b]0;owned\x07 \x9b31m \x85\r\n\u202e\x7f\udc80"
ESCAPED = r"\x1b]0;owned\x07 \x9b31m \x85\r\n\u202e\x7f\udc80"
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ud800-\udfff]")


def test_control_characters_are_escaped_and_other_text_is_unchanged():
    assert printable(BAD) == ESCAPED
    assert printable(ESCAPED) == ESCAPED
    assert all(printable(chr(c)).isprintable() for c in (*range(0xA0), *range(0xD800, 0xE000)))
    plain = "C:\\dir 'é' \"漢\" 👩‍👧 שלום"
    assert printable(plain) == plain


def test_each_argument_of_an_error_is_a_line_whatever_is_in_it():
    error = pickle.loads(
        pickle.dumps(ConversionError(f"two are bad, {BAD}:", f"  {BAD}", "repair them"))
    )
    assert str(error) == f"two are bad, {ESCAPED}:\n  {ESCAPED}\nrepair them"
    assert str(InfeedError(f"around: {error}")).count("\n") == 0
    assert str(StorageError(BAD)) == ESCAPED
    assert str(InfeedError()) == ""


def test_no_module_prints_or_logs_another_way():
    root = Path(pipeline.__file__).parents[1]
    sources = [
        path
        for name in ("pipeline", "trainer", "converters", "beam_jobs")
        for path in (root / name).rglob("*.py")
    ]
    another = re.compile(r"rich\.console import .*\bConsole\b|rich import print|getLogger\(\"")
    assert [str(path) for path in sources if another.search(path.read_text())] == []
    assert len(sources) > 100


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_prints_no_control_character_of_data(terminal):
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=200, color_system=None)
    table = Table(f"head {BAD}")
    table.add_row(BAD)
    with Live(f"live {BAD}", console=console, auto_refresh=False):
        console.print(table, f"plain {BAD}")
        console.log(BAD)
    console.print("two\nlines")
    say(console, BAD)
    printed = re.sub("\x1b\\[[?0-9;]*[A-Za-z]", "", out.getvalue()).replace("\r", "")
    assert not CONTROL.search(printed)
    assert printed.endswith(f"two\nlines\n{ESCAPED}\n")


@pytest.mark.parametrize("tool", [verify, checkpoints])
def test_an_argument_that_is_not_known_is_named_without_its_orders(tool):
    with pytest.raises(OptionError) as raised:
        tool.main(["out", BAD[:-1], "--fast"])
    printed = str(raised.value)
    assert f"unrecognized arguments: {ESCAPED.removesuffix('udc80')[:-1]} --fast" in printed
    assert not CONTROL.search(printed)


def test_a_log_keeps_its_own_lines_and_escapes_arguments(caplog):
    logger("pipeline").warning("first %s\nsecond %d %s", BAD, 3, StorageError(BAD))
    logging.getLogger("pipeline").warning("as it is: 100%")  # the same logger, and no arguments
    assert caplog.messages == [f"first {ESCAPED}\nsecond 3 {ESCAPED}", "as it is: 100%"]


def test_a_hostile_manifest_is_described_and_verified_without_its_orders(
    write_dataset, tmp_path, capsys, caplog
):
    record = {"image/encoded": b"x", "image/class/label": 1, "image/weight": [0, 1]}
    directory = tmp_path / BAD[:-1].replace("\x1b]0;", "\x1b]")
    write_dataset(directory, {"train": [[record]]})
    fields = json.loads((directory / "manifest.json").read_text())
    del fields["checksum"]
    fields |= {
        "name": BAD,
        "writer": BAD,
        "labels": {"key": "image/class/label", "base": 1, "names": [BAD]},
    }
    fields["schema"]["features"]["image/encoded"]["doc"] = f"[/red] {BAD}"
    entry = fields["splits"]["train"] | {"plan_digest": BAD, "fixups": {BAD: 1}}
    entry["shards"] = [entry["shards"][0] | {"file": f"train-{BAD}"}]
    fields["splits"] |= {BAD: entry, "[/red]": entry}
    (directory / "manifest.json").write_text(json.dumps(fields))
    for tool in (describe, verify):
        try:
            tool.main([str(directory)])
        except InfeedError as e:
            print(e)
    for call in (
        lambda: eval_dataset(directory, split=BAD, global_batch=1),
        lambda: eval_dataset(directory, split="tarin", global_batch=1),
    ):
        with pytest.raises(InfeedError) as caught:
            call()
        print(caught.value)
    printed = capsys.readouterr()
    assert "\\x1b]" in printed.out
    assert not CONTROL.search(printed.out + printed.err + caplog.text)
