"""What a training leaves behind is enough: `load` and `infeed predict` say of raw files what --mode predict says of the
records that a conversion made of them, bit for bit."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from damage import bind_to_description
from infeed_door import run_infeed
from pictures import FORMATS, encoded, heic, picture, transparent
from PIL import Image
from raw_data.pixels import RawCifar, RawMnist
from stages import without_beam
from sweep import SWEEP

from converters import cifar_to_gcs, idx_to_gcs, image_folder_to_gcs
from pipeline.datasets import eval_dataset, open_dataset
from pipeline.errors import CheckpointError, OptionError, Reject
from pipeline.shards.schema import Feature, Schema
from pipeline.shards.typed_json import sealed
from pipeline.sources.in_memory import ExampleRecords
from trainer.__main__ import main as trainer_main
from trainer.checkpointing.kept_data import checksum
from trainer.checkpointing.listing import finished_steps
from trainer.commands import predict
from trainer.commands.recorded import load
from trainer.recipe import settings
from trainer.recipes.small_images import Digits
from trainer.reports.segments import append, read_history
from trainer.trainer import Trainer

# runpy warns of modules that tests of this process have imported before.
pytestmark = pytest.mark.filterwarnings("ignore:.*found in sys.modules")
BATCHES = ["--global-batch-size=8", "--eval-batch-size=4"]
DIGITS = ["--global-batch-size=8", "--eval-batch-size=92"]
PHOTOS = [*BATCHES, "--size=16", "--widths", "4", "8", "--max-steps=2"]


def odd_photographs(folder):
    """A file of every kind that the converter of photographs reads, in two classes."""
    upside_down = Image.Exif()
    upside_down[0x0112] = 3
    first, second = picture(40, 30), picture(40, 30).transpose(Image.Transpose.ROTATE_180)
    deep = Image.fromarray(np.arange(3000, dtype=np.uint16).reshape(50, 60))
    files = {name: data for name, (data, _) in FORMATS.items()} | {
        "turned": encoded(picture(90, 50), exif=upside_down.tobytes(), quality=95),
        "animated": encoded(first, "GIF", save_all=True, append_images=[second]),
        "16 bits": encoded(deep, "PNG"),
        "transparent GIF": encoded(transparent(), "GIF"),
        "HEIC": heic(picture(90, 50), orientation=8),
    }
    for split in ("train", "validation"):
        for number, (name, data) in enumerate(sorted(files.items())):
            place = folder / split / f"class {number % 2}"
            place.mkdir(parents=True, exist_ok=True)
            (place / name.replace(":", "").replace(" ", "_")).write_bytes(data)
    return folder


def train(workdir, recipe, shards, *options):
    assert trainer_main([recipe, f"--data-dir={shards}", f"--workdir={workdir}", *options]) == 0


def predict_records(workdir, recipe, shards, *options):
    train(workdir, recipe, shards, "--mode=predict", *options)


def of_records(workdir, *names):
    """These values of every record's prediction, in order."""
    lines = map(json.loads, (workdir / "predictions.jsonl").read_text().splitlines())
    return [tuple(line[name] for name in names) for line in lines]


@pytest.fixture
def infeed_predict(monkeypatch, capsys):
    """infeed_predict(argument, ...) -> (status, stdout, stderr)."""

    def predict(*arguments):
        capsys.readouterr()
        return run_infeed(monkeypatch, capsys, "predict", *map(str, arguments))

    return predict


@pytest.fixture
def predicted(infeed_predict):
    """predicted(arguments of infeed predict) -> the lines of JSON that it prints."""

    def predict(*arguments):
        status, out, err = infeed_predict(*arguments, "--json")
        assert status == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return predict


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--apply-orientation"]], ids=["as it is", "turned"])
def test_every_format_of_photographs_is_predicted_as_its_converted_record(
    predicted, tmp_path, options
):
    raw, shards, workdir = tmp_path / "raw", tmp_path / "shards", tmp_path / "run"
    odd_photographs(raw)
    with without_beam():
        image_folder_to_gcs.main([f"--raw-data-dir={raw}", f"--output={shards}", *options])
    train(workdir, "images", shards, *PHOTOS)
    predict_records(workdir, "images", shards, *PHOTOS)
    shutil.rmtree(shards)
    lines = predicted(workdir, raw / "validation")  # turned upright if the conversion did
    names = ("class", "class_name", "probability")
    found = {(Path(line["file"]).name, *(line[name] for name in names)) for line in lines}
    assert found == {*of_records(workdir, "file", *names)}
    assert len(lines) == len(FORMATS) + 5
    assert not {"label", "label_name", "index"} & lines[0].keys()


@pytest.fixture(scope="module")
def digits_run(digits, tmp_path_factory):
    """The work directory of a run of the digits recipe, with the predictions of its validation."""
    workdir = tmp_path_factory.mktemp("digits") / "run"
    options = [*DIGITS, "--max-steps=3", "--keep-best=accuracy"]
    train(workdir, "digits", digits[1], *options)
    predict_records(workdir, "digits", digits[1], *options)
    return workdir


def files_of(shards, split, directory):
    """The encoded images of a split's records, as files, in order."""
    directory.mkdir()
    examples = open_dataset(str(shards), split).examples(["image/encoded"])
    paths = [directory / f"{number:04d}" for number in range(len(examples))]
    for path, example in zip(paths, examples, strict=True):
        path.write_bytes(example["image/encoded"])
    return paths


@pytest.mark.slow
def test_the_recipe_of_small_jpegs_predicts_files_as_records(
    digits, digits_run, predicted, tmp_path
):
    before = {path: path.stat().st_mtime_ns for path in (digits_run, *digits_run.rglob("*"))}
    paths = files_of(digits[1], "validation", tmp_path / "files")
    lines = predicted(digits_run, *paths, "--step=best")
    found = [(line["class"], line["probability"]) for line in lines]
    assert found == of_records(digits_run, "class", "probability")
    after = {path: path.stat().st_mtime_ns for path in (digits_run, *digits_run.rglob("*"))}
    assert after == before  # the work directory is only read


def of_idx(directory):
    raw = RawMnist(directory / "raw", size=(28, 28))
    raw.labels["train"][3] = 1
    raw.write()
    with without_beam():
        idx_to_gcs.main([f"--raw-data-dir={raw.directory}", f"--output={directory}/shards"])


def of_cifar(directory):
    (raw := RawCifar(directory / "raw")).batches["data_batch_1.bin"][1, 0] = 1
    raw.write()
    with without_beam():
        cifar_to_gcs.main([f"--raw-data-dir={raw.directory}", f"--output={directory}/shards"])


PIXELS = {
    "mnist": (of_idx, ["--widths", "2", "4", "--hidden=8"]),
    "images": (of_idx, ["--widths", "2", "4", "--size=16", "--num-classes=10"]),
    "imagenet_resnet50": (
        of_cifar,
        ["--model=cnn", "--bn-span=None", "--widths", "2", "4", "--size=16", "--warmup=0"],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("recipe", PIXELS if SWEEP else ["images"])
def test_pngs_of_exact_pixels_are_predicted_as_records(recipe, predicted, tmp_path):
    convert, options = PIXELS[recipe]
    convert(tmp_path)
    options = [*BATCHES, "--max-steps=1", "--eval-split=test", *options]
    train(tmp_path / "run", recipe, tmp_path / "shards", *options)
    predict_records(tmp_path / "run", recipe, tmp_path / "shards", *options)
    lines = predicted(tmp_path / "run", *files_of(tmp_path / "shards", "test", tmp_path / "files"))
    found = [(line["class"], line["probability"]) for line in lines]
    assert found == of_records(tmp_path / "run", "class", "probability")


@pytest.mark.slow
def test_an_evaluation_has_the_options_of_the_training_and_a_resumed_one_says_what_changed(
    caplog, capsys, tmp_path
):
    of_idx(tmp_path)
    workdir, shards = tmp_path / "run", tmp_path / "shards"
    others = [*BATCHES, "--eval-split=test"]
    own = ["--widths", "2", "4", "--size=16", "--num-classes=10"]
    train(workdir, "images", shards, *others, *own, "--max-steps=1", "--learning-rate=0.1")
    result = json.loads((workdir / "eval_result.json").read_text())
    predict_records(workdir, "images", shards, *others)
    train(workdir, "images", shards, *others, "--mode=evaluate")
    assert caplog.messages.count("as in the run: num_classes 10, size 16, widths (2, 4)") == 2
    assert json.loads((workdir / "eval_result.json").read_text())["loss"] == result["loss"]
    capsys.readouterr()
    other = f"images --data-dir={shards} --workdir={workdir} --mode=evaluate --size=32".split()
    assert trainer_main([*other, *others]) == 2
    assert "belongs to another model" in capsys.readouterr().err
    train(workdir, "images", shards, *others, *own, "--max-steps=2", "--learning-rate=0.2")
    assert "other options than in the run before: learning_rate 0.1 -> 0.2" in caplog.messages


def test_a_loaded_model_predicts_arrays_as_the_trainer_predicts_records(digits, digits_run):
    model = load(str(digits_run), "best")
    ops, keys = [model.recipe._decoding()], ["image"]
    source = eval_dataset(str(digits[1]), global_batch=4, ops=ops, keys=keys)
    given = [dict(batch) for batch in source.batches()]
    made = [model.predict({"image": batch["image"]}) for batch in given]
    found = []
    for each in made:
        found += zip(each["class"].tolist(), each["probability"].tolist(), strict=True)
    settings = replace(model.recipe.trainer, predict_batch_size=4)
    trainer = Trainer(model.task, settings, jax.devices()[:1])
    records = model.recipe.on(open_dataset(str(digits[1]), "validation"))
    expected = trainer.predict(records.eval_input, keys=["class", "probability"])
    assert found == [(int(each["class"]), float(each["probability"])) for each in expected]
    assert made[0].keys() == {"class", "probability"}
    assert (model.inputs["image"].shape, model.inputs["image"].dtype) == ((1, 32, 32, 1), np.uint8)
    image = given[0]["image"]
    for wrong, problem in (
        (image / np.float32(255), r"float32 .*; the model reads image: uint8 \[rows, 32, 32, 1\]"),
        (image[:, 1:], r"'image' is uint8 \[4, 31, 32, 1\] in a batch of 4 rows; the model"),
        (image / 255, r"'image' is float64 .*; the model reads image: uint8"),
        (
            image.astype(np.int64) + 256,
            r"'image' is \d+ in row 0, which uint8 cannot hold. The model reads image: uint8",
        ),
        (image[:0], "the batch has no rows"),
        (7.0, r"the batch has no rows; the model reads image: uint8 \[rows, 32, 32, 1\]"),
    ):
        with pytest.raises(OptionError, match=problem):
            model.predict({"image": wrong})
    with pytest.raises(OptionError, match=r"no 'image'; the model reads image: uint8 \[rows, 32,"):
        model.predict({"x": image})
    with pytest.raises(OptionError, match=r"'image' is .* in a batch of 1 row;"):
        model.predict({"_mask": np.ones(1, np.float32), "image": image})
    for by_default in (image.astype(np.int64), image.tolist()):
        predicted = model.predict({"image": by_default})
        assert predicted["class"].tolist() == made[0]["class"].tolist()
    assert repr(model).startswith("<LoadedModel of step 3, which reads image: uint8 [rows, 32,")
    assert model.step == 3
    logits = model.module(image, given[0]["_mask"])
    assert (np.argmax(logits, -1) + 1).tolist() == made[0]["class"].tolist()
    assert all(name.endswith(("kernel", "bias", "scale")) for name in model.variables.params)


@pytest.mark.slow
def test_a_model_is_loaded_from_a_bucket(digits_run, bucket, gcs_server):
    name = bucket.removeprefix("gs://")
    for file in filter(Path.is_file, digits_run.rglob("*")):
        gcs_server.write(name, f"run/{file.relative_to(digits_run)}", file.read_bytes())
    # where a bucket cannot rename, a file says that it is complete
    for step in (digits_run / "checkpoints").iterdir():
        gcs_server.write(name, f"run/checkpoints/{step.name}/commit_success.txt", b"")
    loaded, expected = load(f"{bucket}/run"), load(str(digits_run))
    for name, array in expected.variables.params.items():
        np.testing.assert_array_equal(loaded.variables.params[name], array)


@pytest.mark.slow
def test_a_model_of_several_devices_is_loaded_on_one_and_predicts_on_any_number(
    digits, run_forked, tmp_path
):
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    options = [f"--data-dir={digits[1]}", f"--workdir={tmp_path}/run", *DIGITS, "--max-steps=1"]
    code, printed = run_forked(["-m", "trainer", "digits", *options], timeout=120, env=flags)
    assert code == 0, printed
    assert "on 4 cpu devices" in printed
    model = load(f"{tmp_path}/run")
    assert {len(array.devices()) for array in model.variables.params.values()} == {1}
    (path, *_) = files_of(digits[1], "validation", tmp_path / "files")
    flags["XLA_FLAGS"] = flags["XLA_FLAGS"].replace("=4", "=3")
    command = ["-m", "trainer.commands.predict", f"{tmp_path}/run", str(path)]
    code, printed = run_forked(command, timeout=120, env=flags)
    assert code == 0, printed


def test_cells_of_rows_are_the_values_of_features_or_no_guess():
    features = {"text": Feature("bytes"), "number": Feature("int64")}
    schema = Schema("own", features | {"pair": Feature("float32", (2,))})
    config = Digits(data_dir="unused", trainer=settings(workdir="unused"))
    records = [{"text": b"", "number": 0, "pair": [0.0, 0.0]}]
    recipe = config.on(ExampleRecords("rows", schema, records))
    row = {"text": "é", "number": "-3", "pair": [1, "0.5"], "other": None}
    assert recipe.row_record(row) == {"text": b"\xc3\xa9", "number": -3, "pair": [1.0, 0.5]}
    for cells in ({"text": None}, {"text": 1}, {"number": 1.5}, {"number": "x"}, {"pair": ["inf"]}):
        with pytest.raises(Reject, match="'(text|number|pair)' is .*; it must be"):
            recipe.row_record(cells)


OWN = """
from dataclasses import dataclass
from trainer.recipes import small_images

@dataclass(frozen=True, kw_only=True)
class Mine(small_images.Digits):
    shift_pixels: int = 1
"""


@pytest.mark.slow
def test_a_recipe_of_ones_own_has_to_be_given(digits, predicted, monkeypatch, tmp_path):
    (tmp_path / "my_recipe.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "run", "my_recipe:Mine", digits[1], *DIGITS, "--max-steps=1")
    (path, *_) = files_of(digits[1], "validation", tmp_path / "files")
    with pytest.raises(OptionError, match="my_recipe:Mine of this run is not infeed's"):
        load(str(tmp_path / "run"))
    from my_recipe import Mine  # pyright: ignore[reportMissingImports]

    model = load(str(tmp_path / "run"), recipe=Mine)
    assert (model.step, model.recipe.shift_pixels) == (1, 1)
    (line,) = predicted(tmp_path / "run", path, "--recipe=my_recipe:Mine")
    assert 1 <= line["class"] <= 10


def test_what_cannot_be_read_or_is_refused_is_named_and_the_rest_predicted(
    digits, digits_run, infeed_predict, tmp_path
):
    """Of a folder with photographs, of which one is turned by its EXIF, one cut short and one too large."""
    paths = files_of(digits[1], "validation", tmp_path / "files")[:3]
    odd = tmp_path / "photos [1]"
    (odd / "nothing").mkdir(parents=True)
    paths[0].rename(odd / "a.jpg")
    turned = Image.Exif()
    turned[0x0112] = 6
    (odd / "b.jpg").write_bytes(encoded(picture(32, 32).convert("L"), exif=turned.tobytes()))
    (odd / "cut.jpg").write_bytes(paths[1].read_bytes()[:200])
    (odd / "large.jpg").write_bytes(encoded(picture(80, 60).convert("L"), "JPEG"))
    for name in ("x", "y"):  # of 2**40 paths to the same folder
        (odd / name).symlink_to(odd)
    os.mkfifo(odd / "pipe.csv")
    (odd / "empty.csv").touch()
    for name in ("notes.txt", "photo.heic"):
        (odd / name).write_bytes(b"# MIF1 or anything else")
    (odd / "huge.jpg").touch()
    os.truncate(odd / "huge.jpg", 2**34)
    (odd / "rows.jsonl").write_text(f'{{"image/class/label": {2**70}}}\n')
    status, out, err = infeed_predict(digits_run, odd, "--output", f"{tmp_path}/made.jsonl")
    assert status == 1
    assert f"2 predictions written to {tmp_path}/made.jsonl" in " ".join(out.split())
    lines = [json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()]
    assert [line["file"] for line in lines] == [f"{odd}/a.jpg", f"{odd}/b.jpg"]
    ((expected, probability), *_) = of_records(digits_run, "class", "probability")
    assert lines[0]["class"] == expected
    # other rows per device, other last bits
    assert lines[0]["probability"] == pytest.approx(probability, rel=1e-6)
    for file, problem in {
        f"{odd}/cut.jpg": "truncated",
        f"{odd}/notes.txt and 1 more": "not a JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or HEIC file",
        f"{odd}/large.jpg": "'image/encoded' is a JPEG of a size other than the 32 x 32 of",
        f"{odd}/huge.jpg": "more than 537 MB",
        f"{odd}/empty.csv": f"{odd}/empty.csv has no header",
        f"{odd}/rows.jsonl:1": f"'image/class/label' is {2**70}",
    }.items():
        assert f"{file}: {problem}" in err
    assert f"{odd}/pipe.csv is a directory or a device, not a file." in err
    note = (
        "EXIF rotates 1 of the pictures, which was ignored, as by the conversion. --apply-orientation "
        "turns them upright"
    )
    assert f"note: {note}" in err
    assert "error: left out 8 of 10, which could not be read." in err
    status, out, err = infeed_predict(digits_run, odd / "large.jpg", "--json")
    assert (status, out, "left out 1 of 1" in err) == (1, "", True)


def test_a_table_has_predictions_with_and_without_a_name(
    digits, digits_run, predicted, infeed_predict, monkeypatch, tmp_path
):
    lines = predicted(digits_run, *files_of(digits[1], "validation", tmp_path / "files"))
    named = lines[0]["class"]
    other = next(line for line in lines if line["class"] != named)
    names = SimpleNamespace(name_of=lambda number: "a name" if number == named else None)
    monkeypatch.setattr(Digits, "class_names", lambda self: {"class": names})
    status, out, err = infeed_predict(digits_run, lines[0]["file"], other["file"])
    assert (status, out.count("a name")) == (0, 1), err


def test_no_other_checkpoint_is_looked_for_because_a_history_names_it(digits_run, tmp_path):
    history = shutil.copytree(digits_run, tmp_path / "run") / "segments.jsonl"
    lines = [json.loads(line) for line in history.read_text().splitlines()]
    for line in lines:
        del line["checksum"]
        if "command" in line:
            line["command"]["options"].append("--checkpoint-path=elsewhere")
    history.write_text("\n".join(map(json.dumps, lines)))
    assert load(str(tmp_path / "run")).recipe.checkpoint_path is None


def test_what_a_foreign_work_directory_states_costs_no_memory_and_ends_no_program(
    digits_run, tmp_path
):
    shutil.copytree(digits_run, tmp_path / "huge")
    page = json.loads((tmp_path / "huge/description.json").read_text())
    page["schema"]["features"]["image/height"]["shape"] = [10**12]
    (tmp_path / "huge/description.json").write_text(json.dumps(sealed(page)))
    (step,) = finished_steps(str(digits_run))
    bind_to_description(tmp_path / f"huge/checkpoints/{step}", checksum(str(tmp_path / "huge")))
    with pytest.raises(CheckpointError, match="a record has 1,000,000,000,000 values"):
        load(str(tmp_path / "huge"))
    shutil.copytree(digits_run, tmp_path / "helping")
    (tmp_path / "helping/segments.jsonl").unlink()
    start = read_history(str(digits_run)).starts[0]
    helping = replace(start, command=replace(start.command, options=["--help"]))
    append(str(tmp_path / "helping"), helping)
    damaged = r"the history is damaged: --help prints help and trains no model"
    with pytest.raises(CheckpointError, match=damaged):
        load(str(tmp_path / "helping"))


def test_a_directory_without_a_checkpoint_and_a_table_of_too_many_rows_are_refused(
    digits_run, monkeypatch, tmp_path
):
    with pytest.raises(CheckpointError, match="has no checkpoint"):
        load(str(tmp_path))
    monkeypatch.setattr("trainer.commands.new_files.MOST_ROWS", 3)
    (tmp_path / "rows.jsonl").write_text('{"image/height": 1}\n' * 4)
    with pytest.raises(OptionError, match=r"rows\.jsonl has more than 3 rows"):
        predict.main([str(digits_run), str(tmp_path / "rows.jsonl")])
