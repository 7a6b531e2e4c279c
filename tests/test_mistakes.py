"""Typical mistakes of a first day: each is exit code 2 and one line, which states the remedy. Nothing is written."""

import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from infeed_door import run_infeed
from raw_data.folders import RawImageFolder
from raw_data.images import make_jpeg

from pipeline import logs
from pipeline.console import commands
from pipeline.datasets import open_dataset, train_dataset
from pipeline.errors import InfeedError
from pipeline.formats import FixedLength
from pipeline.hosts import Hosts
from pipeline.ops import DecodeJpeg
from pipeline.shards.example import encode_example
from pipeline.shards.frames import frame
from pipeline.shards.schema import Feature, Schema
from trainer import __main__ as trainer
from trainer.config import TrainerConfig
from trainer.task import Task

OUT = "--output=out"
FOLDERS = f"convert images --raw-data-dir=classes {OUT}"
TABLE = f"convert table --raw-data-dir=table {OUT}"
JPEG = "image/encoded"
IMAGES = "train images --data-dir shards --workdir work"

COMMAND_LINES = {
    # the command itself
    "convrt images": r"there is no command 'infeed convrt'\. Did you mean 'convert'\?",
    "convert image": r"there is no command 'infeed convert image'\. Did you mean 'images'\?",
    "verfy shards": r"there is no command 'infeed verfy'\. Did you mean 'verify'\? Known: checkpoints, convert, ",
    "imagenet": r"there is no command 'infeed imagenet'\. Did you mean 'convert imagenet'\? Known: ",
    "evaluate shards": r"no command 'infeed evaluate'\. It is a mode of training: infeed train RECIPE --mode evaluate",
    "convert a\x1b": r"there is no command 'infeed convert a\\x1b'\. Known: cifar, ",
    "verify": r"the following arguments are required: DIR\. See infeed verify --help",
    "convert images --raw-data-dir=classes": r"arguments are required: --output.* See infeed convert images --help",
    # raw data
    f"convert imagenet --raw-data-dir=nowhere {OUT}": r"--raw-data-dir=nowhere does not exist",
    f"convert imagenet --raw-data-dir=empty {OUT}": r"needs ILSVRC2012_img_train\.tar .* It has: nothing",
    f"convert imagenet --raw-data-dir=file {OUT}": r"file is a file\. Give a directory",
    f"convert images --raw-data-dir=gs:/bucket/raw {OUT}": r"Did you mean gs://bucket/raw\?",
    f"convert images --raw-data-dir=az://bucket/raw {OUT}": r"az:// is not supported\. Allowed: .* gs://",
    f"convert images --raw-data-dir=flat {OUT}": r"Put the images of each class into a folder",
    FOLDERS: r"If these are the class folders, give --validation-fraction",
    "convert images --raw-data-dir=classes --output=classes/shards --validation-fraction=0": r"outside the raw data",
    f"{FOLDERS} --validation-fraction=0.5 --test-fraction=0.5": r"-fraction are 1 together: nothing is left",
    f"{FOLDERS} --validation-fraction=1.5": r"--validation-fraction=1\.5: must be at least 0 and below 1",
    f"{FOLDERS} --validation-fraction=0 --splits=tain": r"unknown split 'tain'\. Did you mean 'train'\?",
    f"{FOLDERS} --validation-fraction=0 --target-shard-byte=5MB": r"Did you mean --target-shard-bytes\?",
    f"{FOLDERS} --validation-fraction=0 --target-shard-bytes=big": r"'big' is not a size in bytes\. .* 100MB",
    f"{FOLDERS} --validation-fraction=0 --local-processes=0": r"--local-processes: '0' is neither auto nor an int of at least 1",
    f"{FOLDERS} --validation-fraction=0 --runner=dataflw": r"no such runner\. Did you mean 'dataflow'\?",
    f"{FOLDERS} --stratify": r"--stratify: give the --validation-fraction or --test-fraction that they are for",
    f"{FOLDERS} --validation-fraction=0 --split-by=file": r"--split-by=file: must be name, content, folder, or a",
    f"{FOLDERS} --validation-fraction=0 --split-by=(a": r"--split-by=\(a is not a valid regular expression: missing \)",
    f"{FOLDERS} --validation-fraction=0 --split-by=(a)(b)": r"has 2 pairs of parentheses\. It must have one",
    f"{TABLE} --validation-fraction=0 --split-by=folder": r"--split-by=folder: rows are in no folder",
    f"{TABLE} --validation-fraction=0 --split-by=lable": r"--split-by: .* no column 'lable'\. Did you mean 'label'\?",
    f"{TABLE} --validation-fraction=0 --stratify": r"--stratify: give the --label-column of the classes",
    f"{FOLDERS} --validation-fraction=0 --verify=al": r"invalid choice: 'al'.* See infeed convert images --help",
    f"convert table --raw-data-dir=empty {OUT} --image-column=file": r"empty has no tables \(\.csv",
    f"convert table --raw-data-dir=table/train.csv {OUT} --image-column=file": r"is a file\. Give a directory",
    f"{TABLE} --columns=file=img": r"--columns: file=img is not understood\. Did you mean .image.\?",
    f"{TABLE} --columns=flie=image": r"the tables have no column 'flie'.*\. Did you mean 'file'\?",
    f"{TABLE} --missing=label=": r"--missing: label= is not understood\. Give COLUMN=VALUE,\.\.\. or a \.json file",
    f"{TABLE} --target-columns=label": r"--target-columns=label: not without --image-column or --text-column",
    f"{TABLE} --image-column=file --columns=label=text": r"--columns=label=text: not with --image-column or",
    f"{TABLE} --image-column=flie --label-column=label": r"no column 'flie'\. Did you mean 'file'\?",
    f"{TABLE} --image-column=file --label-column=lable": r"no column 'lable'\. Did you mean 'label'\?",
    f"convert text --raw-data-dir=empty {OUT}": r"empty has no text: no file ends in \.txt, \.csv",
    f"convert idx --raw-data-dir=empty {OUT}": r"no file of images like train-images-idx3-ubyte",
    f"convert cifar --raw-data-dir=empty {OUT}": r"none of cifar-10-batches-bin",
    f"convert tfds --dataset=mnist --data-dir=empty {OUT}": r"mnist is not prepared.* Give --download",
    f"convert tfrecord --raw-data-dir=empty {OUT}": r"Name them: --pattern train=PATTERN",
    # shards
    "verify nowhere": r"there is no such directory\. Give the output of a conversion",
    "verify shards --split tain": r"no split 'tain'\. Did you mean 'train'\?",
    "describe file": r"file is a file\. Give its directory",
    "index nothing-*": r"nothing-\* matches no file",
    "describe shards --split tain": r"no split 'tain'\. Did you mean 'train'\?",
    "digits": r"required: out\. See infeed digits --help",
    # training
    "report nowhere": r"nowhere is not a directory\. Give the --workdir of a run",
    "train imags": r"there is no recipe 'imags'\. Did you mean 'images'\?",
    "train images": r"required: --workdir\. See infeed train images --help",
    "train images --workdir work": r"--data-dir is not given\. Give the directory .* as --data-dir, or .* --tiny",
    "train images --data-dir nowhere --workdir work": r"there is no such directory\. Give the output of a conversion",
    f"{IMAGES} --train-split tain": r"no split 'tain'\. Did you mean 'train'\?",
    f"{IMAGES} --init-from file": r"'file' is not a checkpoint\. Give .* Pickles, such as \.pt and \.bin, are never read",
    f"{IMAGES} --init-from parts": r"--init-from='parts' has no model-00002-of-00002\.safetensors, one of 2 parts\. Give",
    f"{IMAGES} --init-from described --normalization imagenet": r"the weights expect .* Set --normalization=inception\.",
    f"{IMAGES} --init-from none.safetensors": r"--init-from='none\.safetensors' does not exist\. Give a work directory",
    f"{IMAGES} --lr 0.1": r"--lr\. Did you mean --learning-rate\?",
    f"{IMAGES} --epochs 3": r"Did you mean --max-epochs\?",
    f"{IMAGES} --batch-size 3": r"Did you mean --global-batch-size\?",
    f"{IMAGES} --nesterov": r"A recipe of your own can set nesterov; no flag does\.",
    f"{IMAGES} --max-steps 12 --max-epochs=10": r"--max-steps and --max-epochs are both given\. Give one\.",
    f"{IMAGES} --max-step 5": r"unrecognized arguments: --max-step\. Did you mean --max-steps\? See infeed train images --help",
    f"{IMAGES} --max-steps five": r"five.* See infeed train images --help",
    f"{IMAGES} --max-steps": r"Missing value for argument '--max-steps'\. Expected one value\. See infeed train images",
    "train images --workdir work --input-workers=many": r"--input-workers=many is not a whole number or auto\. See infeed",
    "train images --workdir work --max-steps sixty": r"--max-steps=sixty is not a whole number\. See infeed train",
    "train images --data-dir shards --workdir shards --max-steps 1": r"--workdir=shards is a --data-dir\. Give",
    "train images --workdir": r"Missing value for argument '--workdir'\. Expected one value\. See infeed train images",
    "convert images --output": r"argument --output.*: expected one argument\. See infeed convert images --help",
    f"{IMAGES} --mode evalute": r"'evalute'.*'evaluate'.* See infeed train images --help",
    f"{IMAGES} --mode evaluate": r"work(/checkpoints has no checkpoint| is no directory)\. Train first, or give",
    f"{IMAGES} --size 4": r"size=4 must be at least 8 pixels",
    f"{IMAGES} --global-batch-size 0": r"--global-batch-size=0 must be an int above 0",
    f"{IMAGES} --model vit_s16 --size 60": r"--size=60 is not a multiple of --patch=16, .* Nearest: 64",
    f"{IMAGES} --model vit_s16 --patch 0": r"--patch=0 must be an int above 0",
    f"{IMAGES} --model vit_b16 --bn-span 32": r"--bn-span=32 with --model=vit_b16, which has no batch norm\. Leave it out",
    f"{IMAGES} --remat full": r"--remat=full with --model=cnn: only Vision Transformers have it\. Leave it out",
    f"{IMAGES} --model vit_s": r"'vit_s' for argument '--model'\. Expected one of .*'vit_s16'",
    f"{IMAGES} --label-key label": r"--label-key=label is not one integer per record\. Known: .*image/class/label",
    f"{IMAGES} --mesh fsdp": r"mesh='fsdp' is not of the form data=2,fsdp=4: give data, fsdp and model at most once",
    f"{IMAGES} --partition head": r"partition='head' is not PATTERN=AXES\. Give data, .* 'head/kernel=fsdp,model'",
    f"{IMAGES} --keep-best acuracy --max-steps 1": r"--keep-best='acuracy' .* Did you mean 'accuracy'\?",
    "train images --data-dir records --workdir work": r"no class names for 'label'\. Give --num-classes",
    "train images --data-dir shards --workdir file --max-steps 1": r"A file has this name; choose another place",
    "train digits --data-dir texts --workdir work": r"no feature 'image/encoded'.* use the images recipe",
    "checkpoints nowhere": r"nowhere",
    "export-weights nowhere": r"arguments are required: --output\. See infeed export-weights --help",
    "export-weights nowhere --output=a.safetensors": r"'nowhere' has no checkpoint\. Give the work directory of a run",
    "export-weights nowhere --output=model.bin": r"model\.bin must end in \.safetensors",
    "export-weights nowhere --output=a.safetensors --names=keras": r"invalid choice: 'keras'.* See infeed export-weights",
    "export-weights nowhere --output=a.safetensors --step=last": r"--step=last: give the number of a step, or best",
    "seen nowhere --step 3": r"nowhere has no segments\.jsonl, so no step can be traced\. .* give the --workdir of",
    "seen nowhere --step three": r"invalid int value: 'three'\. See infeed seen --help",
    # predicting new files
    "predict nowhere": r"the following arguments are required: FILES\. See infeed predict --help",
    "predict nowhere nofile.jpg": r"nofile\.jpg does not exist\. Give images, tables, or folders of them",
    "predict nowhere empty": r"empty has no files\. Give images, tables, or folders of them",
    "predict nowhere file": r"nowhere is no directory\. Train first, or give the right workdir",
    "predict nowhere file --step last": r"--step=last: give the number of a step, or best",
    "predict nowhere file --output file": r"--output=file exists\. Remove it, or give another name",
    "predict nowhere file --apply_orientaton": r"unrecognized arguments: --apply-orientaton\. See infeed predict",
    # before the raw data are looked at, in dry runs too
    f"convert images --raw-data-dir=nowhere {OUT} --overwite": r"--overwite is not .* Did you mean --overwrite\?",
    f"convert images --raw-data-dir=nowhere {OUT} --dry-run --overwite": r"Did you mean --overwrite\?",
    f"convert images --raw_data_dir=nowhere {OUT} --validation_fractoin=0.1": r"Did you mean --validation-fraction\?",
    f"convert images --raw-data-dir=nowhere {OUT} --dry-run --runner=nosuch": r"--runner=nosuch: no such runner\.",
    f"{IMAGES} --num-classes 3": r"--num-classes=3: shards has 10 classes .*\. Leave it out",
}
# Those that neither data nor JAX can tell: they come within a second, as nothing heavy is imported.
LIGHT = [
    "verify",
    f"convert images --raw-data-dir=nowhere {OUT} --dry-run --overwite",
    f"convert imagenet --raw-data-dir=nowhere {OUT}",
    "verify nowhere",
    "train imags",
    f"{IMAGES} --max-step 5",
    f"{IMAGES} --mode evaluate",
    "train images --workdir work",
    "checkpoints nowhere",
    "export-weights nowhere --output=a.safetensors",
    "seen nowhere --step three",
    "predict nowhere file",
    "predict nowhere file --step last",
]
WITHOUT_HEAVY = """
import sys, warnings
warnings.simplefilter("ignore")  # runpy's: modules are imported before they run again
sys.modules |= dict.fromkeys(("jax", "tensorflow", "apache_beam", "orbax"))
from pipeline.commands import infeed
from pipeline.console import commands
from trainer import __main__ as trainer
for words in sys.argv[1:]:
    command, *options = words.split()
    commands._by_infeed = command == "train"
    sys.argv = ["infeed", command, *options]
    try:
        status = trainer.main(options) if command == "train" else infeed.main()  # `infeed train` ends its process
    except SystemExit as left:
        status = left.code
    assert status == 2, words
"""


def task(**metrics):
    return Task(lambda *_: None, lambda *_: None, None, metrics)


def train(data, global_batch, **options):
    """The first batch."""
    return next(iter(train_dataset(data, global_batch=global_batch, **options).batches()))


IN_PYTHON = [
    (lambda: open_dataset("nowhere"), r"there is no such directory"),
    (lambda: open_dataset("shards", "tain"), r"no split 'tain'\. Did you mean 'train'\?"),
    (lambda: open_dataset("shards", "train[:50%"), r"train\[:50%"),
    (lambda: open_dataset(17), r"int is not a dataset\. Give a directory"),
    (lambda: open_dataset("file", format="tfrecord"), r"format='tfrecord' is not known\. Known:"),
    (lambda: open_dataset("file", format=FIVE_BYTES), r"\bfile\b.*\b5\b"),
    (lambda: train("shards", 2, keys=["image/label"]), r"Did you mean 'image/\w+"),
    (lambda: train("shards", 2, ops=[DecodeJpeg("jpeg")]), r"'jpeg'.* Known: "),
    (lambda: train("shards", 0), r"global_batch=0"),
    (lambda: train("shards", 4, hosts=Hosts(0, 3)), r"4 .*3 hosts"),
    (lambda: train("shards", 10**6), r"1000000|1,000,000"),
    (
        lambda: train("shards", 2, ops=[SMALL]),
        r"other than the 9 x 9 of .* take images of any size",
    ),
    (lambda: TrainerConfig(**SIZES, iterations_per_loop=0), r"iterations_per_loop=0 must be"),
    (lambda: task(loss=lambda *_: None), r"'loss'.* reserved; choose another"),
    (lambda: task(step=lambda *_: None), r"'step'.* reserved; choose another"),
    (lambda: task(time=lambda *_: None), r"'time'.* reserved; choose another"),
    (lambda: task(accuracy=1), r"Allowed: a function\(outputs, batch\)"),
]
FIVE_BYTES = FixedLength(np.dtype([("x", "u1", 5)]))
SMALL = DecodeJpeg(JPEG, shape=(9, 9, 3))
SIZES = {"workdir": "work", "global_batch_size": 8}


@pytest.fixture(scope="module")
def things(tmp_path_factory, digits):
    """A directory of a first day."""
    here = tmp_path_factory.mktemp("first") / "day"
    (here / "empty").mkdir(parents=True)
    (here / "file").write_text("not a dataset")
    for name, file in (("parts", "model-00001-of-00002"), ("described", "model")):
        (here / name).mkdir()
        (here / name / f"{file}.safetensors").touch()
    page = {"mean": [0.5] * 3, "std": [0.5] * 3}
    (here / "described/config.json").write_text(json.dumps(page))
    RawImageFolder(here / "classes").write()
    shutil.copytree(next(path for path in sorted((here / "classes").iterdir())), here / "flat")
    (here / "table").mkdir()
    (here / "table/train.csv").write_text("file,label\nnone.jpg,cat\n")
    shutil.copytree(digits[1], here / "shards")
    examples = Schema("example", {"image/encoded": Feature("bytes"), "label": Feature("int64")})
    texts = Schema("text", {"text": Feature("bytes")})
    for name, schema, values in (
        ("records", examples, {"image/encoded": make_jpeg(), "label": 1}),
        ("texts", texts, {"text": b"one"}),
    ):
        (here / name).mkdir()
        for split in ("train", "validation"):
            path = here / name / f"{split}-00000-of-00001"
            path.write_bytes(frame(encode_example(schema, values)))
    return here


def files(directory):
    return sorted(path for path in directory.rglob("*") if path.is_file())


def run_train(monkeypatch, capsys, *options):
    """As run_infeed; `infeed train` ends its process."""
    monkeypatch.setattr(commands, "_by_infeed", True)
    monkeypatch.setattr(logs, "show", lambda: None)
    try:
        status = trainer.main([*options])
    except SystemExit as left:
        status = left.code
    return status, *capsys.readouterr()


def test_every_command_has_a_mistake():
    words = {command.words for command in commands.ALL_COMMANDS}
    assert [
        each
        for each in words
        if not any(f"{line} ".startswith(f"{each} ") for line in COMMAND_LINES)
    ] == []


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # runpy's
@pytest.mark.parametrize("words", COMMAND_LINES)
def test_a_mistake_in_a_command_is_one_line_with_a_remedy(words, things, monkeypatch, capsys):
    monkeypatch.chdir(things)
    before = files(things)
    command, *options = words.split()
    status, _, printed = (
        run_train(monkeypatch, capsys, *options)
        if command == "train"
        else run_infeed(monkeypatch, capsys, *words.split())
    )
    line = printed.removesuffix("\n")
    assert re.search(COMMAND_LINES[words], line), line
    assert (status, line[:7], line.count("\n")) == (2, "error: ", 0)
    assert files(things) == before


def test_a_mistake_that_needs_no_data_is_found_without_importing_anything_heavy(things):
    command = [sys.executable, "-c", WITHOUT_HEAVY, *LIGHT]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=60, cwd=things
    )
    lines = done.stderr.splitlines()
    assert (done.returncode, len(lines)) == (0, len(LIGHT)), done.stderr
    for words, line in zip(LIGHT, lines, strict=True):
        assert re.search(COMMAND_LINES[words], line), line


@pytest.mark.parametrize(("call", "text"), IN_PYTHON)
def test_a_mistake_in_python_is_one_line_with_a_remedy(call, text, things, monkeypatch):
    monkeypatch.chdir(things)
    with pytest.raises(InfeedError, match=text) as caught:
        call()
    assert len(str(caught.value).splitlines()) == 1
