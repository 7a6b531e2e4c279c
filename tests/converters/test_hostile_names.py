"""Names in raw data may be orders to a terminal. None arrives: not from files, archives, columns, labels or keys."""

import contextlib
import json
import os
import pty
import re
import termios
import threading
from pathlib import Path

import pytest
from raw_data.archives import tar_of, zip_of
from raw_data.imagenet import RawImagenet
from raw_data.images import make_image

from converters import image_folder_to_gcs, imagenet_to_gcs, table_to_gcs, tfrecord_to_gcs
from pipeline.commands import describe, verify
from pipeline.console.parser import exit_with
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

pytestmark = pytest.mark.usefixtures("without_beam")

BAD = "\x1b]0;owned\x07\x9b31m\u202e\x7f"  # a title, a colour, an override
LINES = f"{BAD}\x85\r\nTo repair: rm -rf ~ "
RICH = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")  # rich's own colours and movements, on a terminal


def folders(raw: Path):
    for name in (f"cat {BAD}", "dog"):
        (raw / name).mkdir(parents=True)
        for i in range(3):
            (raw / name / f"{i}{LINES}.png").write_bytes(make_image(i, "PNG"))
    (raw / "dog" / f"broken{LINES}.jpg").write_bytes(b"\xff\xd8broken")
    (raw / "dog" / f"moved{LINES}.csv").write_text(f"file{BAD},label{BAD}\n")
    (raw / f"empty{BAD}").mkdir()
    return image_folder_to_gcs.main, ["--validation-fraction=0.3"]


def archives(raw: Path):
    folders(raw / "inside")
    files = {
        str(p.relative_to(raw / "inside")): p.read_bytes()
        for p in (raw / "inside").rglob("*")
        if p.is_file()
    }
    (raw / "train.zip").write_bytes(zip_of(files))
    (raw / "val.tar").write_bytes(tar_of(files))
    for path in sorted((raw / "inside").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (raw / "inside").rmdir()
    return image_folder_to_gcs.main, []


def json_rows(raw: Path):
    raw.mkdir()
    rows = [
        {"text": f"text {i} {LINES}", f"label{LINES}": f"cat [/red] {BAD}", f"more{LINES}": i}
        for i in range(5)
    ]
    (raw / "train.jsonl").write_text(
        "\n".join(map(json.dumps, [*rows, {"text": "x", f"y{LINES}": 1}])) + f"\n{BAD}\n"
    )
    return table_to_gcs.main, ["--text-column=text", f"--label-column=label{LINES}"]


def tfrecords(raw: Path):
    raw.mkdir()
    schema = Schema(
        "s", {f"text{LINES}": Feature("bytes", content="text"), "number": Feature("int64")}
    )
    records = [frame(encode_example(schema, {f"text{LINES}": b"x", "number": i})) for i in range(5)]
    broken = bytearray(records[-1])
    broken[-6] ^= 1
    (raw / "train-00000-of-00001").write_bytes(b"".join(records) + bytes(broken))
    return tfrecord_to_gcs.main, []


def imagenet(raw: Path):
    written = RawImagenet(raw)
    for images in written.train.values():
        images |= {name.replace(".", f"{LINES}."): images.pop(name) for name in list(images)}
        images[f"broken{LINES}.JPEG"] = b"not an image"
    written.write()
    (raw / "classes.txt").write_text("".join(f"{synset} {BAD}\n" for synset in written.synsets))
    return imagenet_to_gcs.main, [f"--label-file={raw}/classes.txt"]


# Terminals, where rich behaves otherwise, get every other one.
SOURCES = [archives, json_rows, tfrecords, imagenet]


@contextlib.contextmanager
def captured(on_terminal: bool):
    """What was printed meanwhile: all of it is in the list afterwards."""
    leader, follower = pty.openpty() if on_terminal else os.pipe()
    if on_terminal:
        attributes = termios.tcgetattr(follower)
        attributes[1] &= ~termios.OPOST  # \n as it is
        termios.tcsetattr(follower, termios.TCSANOW, attributes)
    pieces: list[bytes] = []

    def read():
        with contextlib.suppress(OSError):  # a terminal's end
            while piece := os.read(leader, 1 << 16):
                pieces.append(piece)

    thread = threading.Thread(target=read)
    thread.start()
    printed: list[str] = []
    try:
        with (
            os.fdopen(follower, "w") as out,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
        ):
            yield printed
    finally:
        thread.join()
        os.close(leader)
        printed.append(b"".join(pieces).decode())


def run(main, *arguments, on_terminal=False) -> str:
    """What a command line prints, however it ends; fails for a traceback."""
    with captured(on_terminal) as printed, contextlib.suppress(SystemExit):
        exit_with(lambda: main(list(arguments)))
    return printed[0]


def harmless(printed: str, on_terminal: bool) -> bool:
    if on_terminal:
        printed = RICH.sub("", printed).replace("\r\x1b[2K", "").replace("\r", "")
    assert "To repair: rm" not in [line.strip()[:13] for line in printed.splitlines()]
    return not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", printed)


@pytest.mark.parametrize(
    ("source", "on_terminal"), [(source, number % 2 == 0) for number, source in enumerate(SOURCES)]
)
def test_names_in_raw_data_never_control_the_terminal(
    source, on_terminal, tmp_path, out, monkeypatch
):
    monkeypatch.setenv("TERM", "xterm-256color")
    main, flags = source(tmp_path / "raw")
    flags = [f"--raw-data-dir={tmp_path / 'raw'}", f"--gcs-output-path={out}", *flags]
    printed = [
        run(main, *flags, "--dry-run", on_terminal=on_terminal),
        run(main, *flags, on_terminal=on_terminal),  # one record is bad
        run(main, *flags, "--max-bad-records=9", on_terminal=on_terminal),
        run(main, *flags, "--max-bad-records=9", "--seed=5", on_terminal=on_terminal),
        run(verify.main, str(out), on_terminal=on_terminal),
        run(describe.main, str(out), on_terminal=on_terminal),
    ]
    assert "intact" in printed[4], "".join(printed)
    shard = next(out.glob("train-*"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x00")
    printed += [
        run(tool, str(out), on_terminal=on_terminal) for tool in (verify.main, describe.main)
    ]
    for text in printed:
        assert harmless(text, on_terminal), text
    assert r"\x1b]0;owned" in "".join(printed)
