"""How commands end, as docs/production.md says: their exit codes, and the object that --json prints."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from damage import flip
from infeed_door import SCRIPT, run_infeed
from raw_data.folders import RawImageFolder

from pipeline.console import parser
from pipeline.console.interrupts import Exit
from pipeline.shards.manifest import read_manifest

ROOT = Path(__file__).parents[1]
CONVERT = ("convert", "images", "--raw-data-dir=classes", "--output=shards")
TRAIN_ONLY = (*CONVERT, "--validation-fraction=0", "--max-bad-records=4")

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*found in sys.modules"),
    pytest.mark.usefixtures("without_beam"),
]


@pytest.fixture
def infeed(monkeypatch, capsys, tmp_path):
    """infeed(*arguments, "--json"): the exit code, the object on stdout, and stderr, of the command in this process."""
    monkeypatch.chdir(tmp_path)
    raw = RawImageFolder(tmp_path / "classes")
    raw.files["cat"]["bad.jpeg"] = b""
    raw.write()

    def run(*arguments):
        parser.FACTS.clear()
        status, out, err = run_infeed(monkeypatch, capsys, *arguments, "--json")
        assert out.count("\n") == 1, out
        assert json.loads(out)["exit_code"] == status
        return json.loads(out), err

    return run


def test_the_page_names_every_exit_code():
    page = (ROOT / "docs/production.md").read_text()
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", page, re.MULTILINE)
    assert dict(rows) == {str(code.value): code.name.lower() for code in Exit}


def test_json_tells_how_a_conversion_ended_and_where_a_repair_is_due(infeed):
    refused, err = infeed(*TRAIN_ONLY[:-1], "--dry-run")
    assert (refused["status"], refused["splits"]["train"]["rejected"]) == ("bad_data", 1)
    assert "the conversion would fail" in err

    done, err = infeed(*TRAIN_ONLY)
    records = done["splits"]["train"]["records"]
    assert (done["status"], done["splits"]["train"]["rejected"]) == ("done", 4)
    assert f"train: {records} records, " in err
    assert done["splits"]["train"] == json.loads(Path("shards/_summary/train.json").read_text())

    described, err = infeed("describe", "shards")
    assert sum(described["splits"]["train"]["labels"].values()) == records
    assert {*described["splits"]["train"]["labels"]} == {"cat", "dog", "grey eel"}

    intact, _ = infeed("verify", "shards")
    assert intact["splits"] == {"train": {"records": records, "intact": records, "problems": 0}}
    flip(Path("shards", read_manifest("shards").splits["train"].shards[0].file), 40)
    damaged, _ = infeed("verify", "shards")
    assert (damaged["status"], damaged["splits"]["train"]["intact"]) == ("bad_data", records - 1)
    assert damaged["problems"][0]["where"].startswith("shards/train-00000-of-00001")
    assert "To repair train" in damaged["repairs"][0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (CONVERT, "give --validation-fraction"),
        (("verify", "nowhere"), "nowhere/manifest.json does not exist"),
        (("describe", "nowhere", "--sampels=3"), "unrecognized arguments: --sampels=3"),
    ],
)
def test_json_has_the_message_of_an_error(infeed, arguments, message):
    error, err = infeed(*arguments)
    assert (error["status"], message in error["error"]) == ("error", True)
    assert err == f"error: {error['error']}\n"


def test_a_bug_looks_neither_like_damage_nor_like_bad_input(infeed, monkeypatch):
    monkeypatch.setattr("pipeline.shards.manifest.read_manifest", lambda _: 1 // 0)
    error, err = infeed("verify", "shards")
    assert (error["status"], error["exit_code"]) == ("bug", 70)
    assert "Traceback" in err


def test_a_full_disk_behind_stdout_is_one_line_and_exit_code_2(infeed):
    infeed(*TRAIN_ONLY)
    for words in (["--help"], ["train", "--help"], ["verify", "shards"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-c", SCRIPT, *words], check=False, stdout=full, text=True,
                stderr=subprocess.PIPE, env=os.environ | {"PYTHONPATH": str(ROOT)},
            )  # fmt: skip
        line = "error: cannot write to stdout: No space left on device.\n"
        assert (done.returncode, done.stderr) == (2, line), words
