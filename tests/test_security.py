"""SECURITY.md, sentence by sentence: commands work on a stranger's files, in a stranger's directory full of modules."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from damage import bind_to_description
from raw_data.folders import RawImageFolder
from raw_data.records import write_tfds_by_hand

from pipeline.datasets import open_dataset
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema

ROOT, MAKING = Path(__file__).parents[1], Path(__file__).with_name("making")
PAGE = (ROOT / "SECURITY.md").read_text()
ADVICE = (  # says nothing of what infeed does
    "Datasets, checkpoints and work directories are often",
    "They are parsed by Pillow",
    "- **Your own code**",
    "- **TFDS's builders**",
    "- **Tokenizer files.**",
    "- **A compilation cache.**",
    "| command |",
    "Please do not open an issue.",
)
# Modules that we or our libraries import, or try to; and those that the data name.
SHADOWS = (
    *("pipeline", "trainer", "converters", "beam_jobs", "numpy", "jax", "orbax", "optax", "tensorflow", "PIL", "rich"),
    *("tensorflow_datasets", "apache_beam", "simplejpeg", "tokenizers", "tyro", "wandb", "olefile", "mlcroissant"),
    *("sitecustomize", "usercustomize", "multiprocessing", "json", "digits", "jax_plugins/evil/__init__"),
    *("evilmod", "tensorflow_datasets_evil"),
)  # fmt: skip
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
PICTURES = Schema("eps", {"image": Feature("bytes", content="image")})
SAID = set()


def says(*fragments):
    """Of a test: these parts of SECURITY.md are what it tests."""
    SAID.update(fragments)
    return lambda test: test


class Ran(NamedTuple):
    """What audited.py has recorded. codes: of the commands that returned. seen: (kind, what). path: at last."""

    codes: list
    seen: list
    path: list
    printed: str

    def all(self, kind):
        return {what for each, what in self.seen if each == kind}


class Theirs:
    """A directory from somebody else: modules that leave a mark when they are executed, and data."""

    def __init__(self, directory):
        self.directory, self._marks = directory / "theirs", directory / "marks"
        self.directory.mkdir()
        self._marks.mkdir()
        for name in (*SHADOWS, "mine"):
            path = self.directory / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            mark = name.replace("/", ".")
            path.write_text(f"open({str(self._marks / mark)!r}, 'w').close()\n")
        (self.directory / "bin").mkdir()
        ghostscript = self.directory / "bin/gs"  # Pillow starts it on an EPS file
        ghostscript.write_text(f"#!/bin/sh\ntouch {self._marks}/gs\n")
        ghostscript.chmod(0o755)

    def marks(self):
        """The modules and programs that were executed since the last call."""
        found = {path.name for path in self._marks.iterdir()}
        for name in found:
            (self._marks / name).unlink()
        return found

    def files(self, *but):
        """Path -> bytes of everything, without these directories and files."""
        paths = {str(path.relative_to(self.directory)): path for path in self.directory.rglob("*")}
        kept = {name: path for name, path in paths.items() if name.partition("/")[0] not in but}
        return {name: path.read_bytes() if path.is_file() else None for name, path in kept.items()}

    def history_of(self, name, recipe, options):
        """A copy of the work directory, whose history names this recipe and these options."""
        work = shutil.copytree(self.directory / "work", self.directory / name)
        start, *rest = (work / "segments.jsonl").read_text().splitlines()
        command = {"recipe": recipe, "options": options, "directory": str(self.directory)}
        changed = json.loads(start) | {"command": command}
        del changed["checksum"]  # whoever makes a history can also leave it out
        (work / "segments.jsonl").write_text("\n".join([json.dumps(changed), *rest]))
        return name


def ran(record, printed):
    return Ran(*json.loads(record.read_text()).values(), printed)


DIGITS = [
    "--data-dir=shards",
    "--max-steps=4",
    "--global-batch-size=32",
    "--checkpoint-every-steps=2",
]


@pytest.fixture(scope="module")
def theirs(digits, tmp_path_factory):
    made = Theirs(tmp_path_factory.mktemp("security"))
    shutil.copytree(digits[1], made.directory / "shards")
    (digit,) = open_dataset(digits[1], "validation[:1]").examples(["image/encoded"])
    (made.directory / "digit.jpg").write_bytes(digit["image/encoded"])
    RawImageFolder(made.directory / "photos").write("train").write("val")
    (made.directory / "eps").mkdir()
    payloads = [frame(encode_example(PICTURES, {"image": EPS}))] * 3
    (made.directory / "eps/train-00000-of-00001").write_bytes(b"".join(payloads))
    (made.directory / "eps.json").write_text(json.dumps(PICTURES.to_json()))
    evil = made.directory / "tfds/evil/1.0.0"
    write_tfds_by_hand(evil, [[]], {"x": "int64"})
    features = (evil / "features.json").read_text()
    (evil / "features.json").write_text(
        re.sub(r"tensorflow_datasets[\w.]+Scalar", "evilmod.X", features)
    )
    return made


@pytest.fixture(scope="module")
def forked(theirs, fork_server, tmp_path_factory):
    """forked([words, ...]): what these commands did, in a process that has imported JAX, TensorFlow and Beam.

    here: in a directory of the user's, which "" means on the path, as in a notebook; otherwise in the stranger's."""

    def run(commands, here=False):
        out = tmp_path_factory.mktemp("ran")
        directory = out if here else theirs.directory
        program = f"import os, sys, audited\nos.chdir({str(directory)!r})\nsys.path[:0] = [''] if {here} else []\n"
        program += f"audited.main({str(out / 'record')!r}, {commands!r})"
        env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{MAKING}", "JAX_PLATFORMS": "cpu"}
        _, printed = fork_server.run(["-c", program], out / "printed", env, timeout=120)
        return ran(out / "record", printed)

    return run


@pytest.fixture(scope="module")
def trained(theirs, forked):
    """What a conversion and a training did."""
    images = ["--raw-data-dir=photos", "--output=converted", "--max-bad-records=9"]
    before = theirs.files()
    found = forked([["convert", "images", *images], ["train", "digits", *DIGITS, "--workdir=work"]])
    assert found.codes == [0], found.printed
    assert "split 'validation', proven exact; written to work/eval_result.json" in found.printed
    assert theirs.files("converted", "work") == before
    return found


@pytest.fixture(scope="module")
def looked(theirs, trained, tmp_path_factory):
    """What the commands did that look at datasets and work directories, in a process that `infeed` starts."""
    out = tmp_path_factory.mktemp("looked")
    commands = {
        "describe": ["shards", f"--html={out}/shards.html"],
        "verify": ["shards", "--decode"],
        "index": ["eps/*", "--schema-file=eps.json"],
        "verify eps": ["eps", "--decode"],
        "checkpoints": ["work"],
        "report": ["work"],
        "export-weights": ["work", f"--output={out}/model.safetensors"],
        "seen": ["work", "--step=3"],
        "convert tfds": ["--dataset=evil", "--data-dir=tfds", f"--output={out}/tfds"],
    }
    words = [[*key.removesuffix(" eps").split(), *options] for key, options in commands.items()]
    before = theirs.files("eps")
    path = f"{theirs.directory}/bin{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        [sys.executable, MAKING / "audited.py", out / "record", json.dumps(words)],
        cwd=theirs.directory, env=os.environ | {"PYTHONPATH": str(ROOT), "PATH": path},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert theirs.files("eps") == before
    assert {path.name for path in out.iterdir()} == {"record", "shards.html", "model.safetensors"}
    seen = ran(out / "record", found.stdout)
    return seen._replace(codes=dict(zip(commands, seen.codes, strict=True))), out


@says(
    "Nothing in them is imported, executed or unpickled, and no program is started to read them.",
    "| `describe`, `verify`, `index`, `checkpoints`, `report`, `export-weights`, `seen` | infeed only; starts no process",
    "- shards, with their manifest and index;",
    "- raw data, and datasets that TFDS has prepared;",
    "You can look at, verify, convert and train on these",
)
@pytest.mark.slow
def test_commands_that_look_at_files_execute_nothing_in_them_and_start_no_process(theirs, looked):
    found, _ = looked
    assert not theirs.marks()
    expected = dict.fromkeys(found.codes, 0) | {"verify eps": 1, "convert tfds": 2}
    assert found.codes == expected, found.printed
    assert not [place for place in found.path if place.startswith(str(theirs.directory))]
    assert not found.all("started")
    assert not found.all("unpickled")
    assert not [
        file for file in found.all("exec") | found.all("compile") if str(theirs.directory) in file
    ]
    assert (
        "'image': an EPS file, which Pillow would decode with Ghostscript: not read"
        in found.printed
    )


@says("A command writes only to the output that you give it;")
def test_a_command_writes_only_to_its_output(theirs, looked):
    found, out = looked
    allowed = (str(out), f"{theirs.directory}/eps", os.devnull)
    changed = {path for path in found.all("changed") if "__pycache__" not in path}
    others = {path for path in changed if not path.startswith(allowed)}
    assert not others


@says("Symbolic links in raw data are followed, wherever they point")
def test_class_folders_may_be_links_to_folders_elsewhere(tmp_path, raw_image_folder, without_beam):
    raw_image_folder.write()
    linked = RawImageFolder(tmp_path / "linked")
    linked.directory.mkdir()
    for name in raw_image_folder.files:
        (linked.directory / name).symlink_to(raw_image_folder.directory / name)
    linked.convert(tmp_path / "shards", "--validation-fraction=0", "--max-bad-records=9")
    raw_image_folder.convert(tmp_path / "same", "--validation-fraction=0", "--max-bad-records=9")
    found = [len(open_dataset(str(tmp_path / out), "train")) for out in ("shards", "same")]
    assert found[0] == found[1] > 0


@says(
    "| `convert` | infeed and Apache Beam",
    "| `train` | infeed's recipes, or the one that you name;",
    "The command `infeed` imports nothing from the current directory.",
)
def test_a_conversion_and_a_training_import_nothing_from_the_current_directory(theirs, trained):
    assert not [place for place in trained.path if place.startswith(str(theirs.directory))]
    assert not trained.all("started")
    assert not [file for file in trained.all("exec") if str(theirs.directory) in file]


@says(
    "| `predict` | infeed's recipes, or the one that you name with `--recipe`",
    "- work directories, with everything that their history names.",
    "Of the options in the history, those that would write a file or run code have no effect",
    "- checkpoints: infeed's own,",
)
@pytest.mark.slow
def test_a_prediction_neither_runs_nor_writes_what_the_options_in_the_history_name(
    theirs, trained, forked
):
    theirs.marks()
    harmful = [
        "--compilation-cache-dir=cache",
        "--profile-steps=1:3",
        "--export-path=exported",
        "--report=page.html",
    ]
    harmful += ["--input-workers=3"]
    evil = [
        f"--data-dir={theirs.directory}/tfds/evil/1.0.0",
        "--eval-split=train",
        "--workdir=other",
    ]
    works = [
        theirs.history_of(
            "of_digits",
            "digits",
            [*DIGITS, *harmful, "--workdir=other", "--trust-features=evilmod"],
        ),
        theirs.history_of(
            "of_class", "trainer.recipes.small_images:Digits", [*DIGITS, "--workdir=other"]
        ),
        theirs.history_of("of_tyro", "digits", ["--tyro-write-completion", "bash", "completion"]),
        theirs.history_of("of_features", "digits", [*DIGITS, *evil, "--trust-features=evilmod"]),
    ]
    undescribed = (
        theirs.directory / works[-1]
    )  # whoever makes a work directory can also leave it out
    (undescribed / "description.json").unlink()
    for checkpoint in (undescribed / "checkpoints").iterdir():
        bind_to_description(checkpoint, "none")
    before = theirs.files()
    digit = str(theirs.directory / "digit.jpg")
    found = forked([["predict", str(theirs.directory / work), digit] for work in works], here=True)
    assert found.codes == [0, 0, 2, 2], found.printed
    assert "of_features reads no records with named features" in found.printed  # nor opens data
    assert not theirs.marks()
    assert not [place for place in found.path if place.startswith(str(theirs.directory))]
    assert theirs.files() == before
    assert not found.all("started")
    assert not found.all("unpickled")


@says("If the run's recipe is not one of infeed's, the command prints")
def test_a_prediction_with_another_recipe_runs_it_only_when_it_is_named(theirs, trained, forked):
    theirs.marks()
    mine = str(theirs.directory / theirs.history_of("of_mine", "mine:Config", []))
    found = forked([["predict", mine, str(theirs.directory / "photos")]], here=True)
    assert (
        "error: the recipe mine:Config of this run is not infeed's: this would import mine from "
        f"{theirs.directory}/mine.py and run its code. If you trust it, give the recipe: its class, or mine:Config as "
        "--recipe."
    ) in found.printed.splitlines()
    assert not theirs.marks()


@says("The exception is `infeed train` with a recipe of your own")
@pytest.mark.parametrize(
    "command", ["train mine --workdir=other", "predict work digit.jpg --recipe=mine"]
)
def test_a_recipe_of_ones_own_is_found_in_the_current_directory_which_comes_last(
    theirs, trained, forked, command
):
    theirs.marks()
    found = forked([command.split()])
    assert "mine has no class 'Config'" in found.printed
    assert theirs.marks() == {"mine"}
    assert found.path.index(str(theirs.directory)) == len(found.path) - 1


@says("`python -m trainer` is different: Python puts the current directory first")
def test_python_m_runs_the_files_of_the_current_directory_and_with_its_option_for_safe_paths_does_not(
    theirs,
):
    theirs.marks()
    options = {
        "cwd": theirs.directory,
        "env": os.environ | {"PYTHONPATH": str(ROOT)},
        "capture_output": True,
    }
    for flags, executed in (((), {"trainer"}), (("-P",), set())):
        subprocess.run(
            [sys.executable, *flags, "-m", "trainer", "--help"], timeout=60, check=False, **options
        )
        assert theirs.marks() == executed


@says("- **Modules that you allow.**")
def test_a_features_module_is_refused_by_its_name(theirs, looked):
    assert (
        "error: tfds/evil/1.0.0/features.json names the class 'evilmod.X'. TFDS would import evilmod and run its code; "
        "only tensorflow_datasets.core.features is allowed. If you trust that module, name it: infeed convert tfds "
        "--trust-features=evilmod, infeed train RECIPE --trust-features evilmod, or open_dataset(..., "
        "trust_features=['evilmod'])."
    ) in looked[0].printed.splitlines()


class Marking:
    """A pickle of it writes a file when it is loaded."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return open, (str(self._path), "w")


@says("- checkpoints: infeed's own, Orbax's, safetensors and TensorFlow's;")
def test_a_pickle_is_no_checkpoint_to_start_from(theirs, forked, tmp_path):
    (tmp_path / "weights.pt").write_bytes(pickle.dumps(Marking(tmp_path / "loaded")))
    found = forked(
        [["train", "digits", "--tiny", "--workdir=other", f"--init-from={tmp_path}/weights.pt"]]
    )
    assert (
        "weights.pt' is not a checkpoint. Give a work directory or a checkpoint in it"
        in found.printed
    )
    assert not (tmp_path / "loaded").exists()
    assert not found.all("unpickled")


@says("infeed only ever loads the one that it has just made, to verify it.")
def test_only_the_process_that_verifies_an_export_loads_a_saved_model():
    packages = [
        file
        for name in ("pipeline", "converters", "beam_jobs", "trainer")
        for file in (ROOT / name).rglob("*.py")
    ]
    loading = [
        file.name
        for file in packages
        if re.search(r"saved_model\.load|load_model", file.read_text())
    ]
    assert loading == ["verification.py"]


def test_every_statement_of_the_security_page_has_a_test():
    text = " ".join(PAGE.split())
    assert not {said for said in SAID if said not in text}
    parts = re.split(r"\n\n|\n(?=- |\| )", PAGE)
    said = [" ".join(part.split()) for part in parts if not part.startswith(("#", "| ---"))]
    untested = {part for part in said if not any(fragment in part for fragment in SAID)}
    assert {part for part in untested if not part.startswith(ADVICE)} == set()
