"""Conversions, indexes, sidecars and exports leave a user's files, directories and links as they are."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from foreign_trees import plant, seen, trees
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raw_data.imagenet import RawImagenet
from sweep import SWEEP

from converters import digits_raw, text_to_gcs
from pipeline.commands import index, verify
from pipeline.commands.verify import write_dali_index
from pipeline.errors import ConversionError, InfeedError, ManifestError, OptionError
from pipeline.pages.page import check_page, page_html, write_page
from pipeline.shards.manifest import read_manifest
from pipeline.shards.split_index import load_index
from pipeline.storage.schemes import open_storage
from trainer.serving.publishing import Exports

pytestmark = pytest.mark.usefixtures("without_beam")

FLAGS = ("--num-train-shards=3", "--num-validation-shards=2")
ABOUT = {"origin": {}, "signatures": {}, "verified": {}}
OF_A_DATASET = (
    "manifest.json features.json dataset_info.json image-class-label.labels.txt text.json _dali",
    "_index _index/train.npy _index/validation.npy _rejects _rejects/train.jsonl _summary/train.json",
    "_scratch _scratch/train.csv _scratch/train.0-0 _scratch/train.jsonl _shards/notes _shards/train",
    "train train.csv train-00000-of-00003 train-00007-of-00009 validation-00001-of-00002 notes/2023",
)
OF_EXPORTS = (
    "0 7 07 2023 2023/a 1000 1000/notes 1000/variables/more 2000/assets latest lock",
    "2000/assets/vocab 2000/assets.extra/tf_serving_warmup_requests 1700000000",
    ".unpublished-abcdefgh .unpublished-abcdefgh/lock 9/saved_model.pb 9/assets.extra/infeed.json",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A directory with raw data, a complete conversion, TFRecord files and exports. Do not change it: copy."""
    directory = tmp_path_factory.mktemp("made")
    raw = RawImagenet(directory / "raw").write()
    with pytest.MonkeyPatch.context() as patch:
        from stages import Stages

        patch.setattr("beam_jobs.graph.pipeline_of", Stages)
        raw.convert(directory / "out", *FLAGS)
    (directory / "texts").mkdir()
    (directory / "texts" / "train.txt").write_text("In the beginning. " * 50)
    (directory / "records").mkdir()
    for shard in (directory / "out").glob("*-of-*"):
        shutil.copy(shard, directory / "records")
    for number in (1000, 2000):
        model = directory / "exports" / str(number)
        write_model(model)
        (model / "assets.extra/infeed.json").write_text(json.dumps(ABOUT | {"export": number}))
    return directory


def write_model(model: Path) -> None:
    for name in ("variables", "assets", "assets.extra"):
        (model / name).mkdir(parents=True)
    for name in (
        "saved_model.pb",
        "fingerprint.pb",
        *(f"variables/variables.{each}" for each in ("index", "data-00000")),
    ):
        (model / name).write_bytes(b"ours")


def convert(made: Path, out: Path, *flags: str) -> None:
    labels = f"--label-file={made}/raw/synsets.txt"
    from converters import imagenet_to_gcs

    imagenet_to_gcs.main([f"--raw-data-dir={made}/raw", f"--output={out}", labels, *FLAGS, *flags])


def convert_text(made: Path, out: Path) -> None:
    text_to_gcs.main([f"--raw-data-dir={made}/texts", f"--output={out}", "--sequence-length=64"])


def repair(made: Path, out: Path) -> None:
    del made
    (out / "features.json").unlink()
    verify.main([str(out), "--write-sidecars"])


def export(made: Path, out: Path) -> None:
    del made
    exports = Exports(str(out))
    with exports.unpublished() as directory:
        write_model(directory / "model")
        exports.publish(directory / "model", ABOUT)
    exports.keep(1)


# name -> (what is there before, the names that collide, the command)
COMMANDS = {
    "a first conversion": (None, OF_A_DATASET, convert),
    "a finished conversion again": ("out", OF_A_DATASET, convert),
    "a conversion with other options": ("out", OF_A_DATASET, lambda made, out: convert(made, out, "--seed=7")),
    "--overwrite": ("out", OF_A_DATASET, lambda made, out: convert(made, out, "--seed=7", "--overwrite")),
    "packed text": (None, OF_A_DATASET, convert_text),
    "an index": ("records", OF_A_DATASET, lambda made, out: index.main([str(out)])),
    "--write-sidecars": ("out", OF_A_DATASET, repair),
    "an export": ("exports", OF_EXPORTS, export),
}  # fmt: skip


@pytest.mark.parametrize("name", COMMANDS)
@settings(
    max_examples=150 if SWEEP else 6,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_no_command_changes_what_others_put_into_its_directory(name, data, made, tmp_path_factory):
    before, names, command = COMMANDS[name]
    tree = data.draw(trees(" ".join(names).split()))
    directory = tmp_path_factory.mktemp("tree")
    out = directory / "out"
    if before is None:
        out.mkdir()
    else:
        shutil.copytree(made / before, out)
    paths = plant(out, directory, tree)
    there = seen(paths)
    with contextlib.suppress(InfeedError):
        command(made, out)
    assert seen(paths) == there
    shutil.rmtree(directory)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_test_above_succeeds_without_a_user_s_files(name, made, tmp_path):
    before, _, command = COMMANDS[name]
    if before:
        shutil.copytree(made / before, tmp_path / "out")
    if name == "a conversion with other options":
        with pytest.raises(ConversionError, match="of another plan"):
            command(made, tmp_path / "out")
    else:
        command(made, tmp_path / "out")


def test_digits_do_not_replace_imagenet(tmp_path):
    (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(b"6.7 GB")
    says = r"ILSVRC2012_img_val\.tar exists and has other contents\. Give another directory, or move the file\."
    with pytest.raises(OptionError, match=says):
        digits_raw.write_raw(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ILSVRC2012_img_val.tar"]


def test_writing_the_same_digits_again_changes_no_file(digits):
    raw, _ = digits
    before = seen(sorted(raw.iterdir()))
    digits_raw.write_raw(raw)
    assert seen(sorted(raw.iterdir())) == before


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_a_page_replaces_only_a_page(place, request, tmp_path):
    path = f"{tmp_path if place == 'disk' else request.getfixturevalue('bucket')}/page.html"
    with open_storage(path).publish(path) as sink:
        sink.write(b"<!doctype html>\n<title>My thesis</title>\n" + b"x" * 10_000)
    with pytest.raises(
        OptionError, match="exists and is not a page of infeed. Give another name, or move the file"
    ):
        check_page(path)
    open_storage(path).delete(path)
    template = tmp_path / "template.html"
    template.write_text('{% extends "page.html" %}')
    write_page(path, page_html(template, {"title": "A title", "lead": "A lead.", "made_by": ""}))
    check_page(path)


def test_an_index_for_dali_replaces_only_such_an_index(made, tmp_path):
    out = str(made / "out")
    entry = read_manifest(out).split("train")
    split_index = load_index(open_storage(out), out, "train", entry)
    paths = write_dali_index(str(tmp_path), entry, split_index)
    write_dali_index(str(tmp_path), entry, split_index)
    Path(paths[1]).write_text("notes")
    with pytest.raises(
        OptionError, match=r"train-00001-of-00003\.idx exists and is not an index for DALI"
    ):
        write_dali_index(str(tmp_path), entry, split_index)


@pytest.mark.parametrize("name", ["../../evil", "..", "nul\0", "thesis.txt"])
def test_a_manifest_names_files_of_its_own_directory_only(name, made, tmp_path):
    directory = tmp_path / "a" / "b" / "out"
    shutil.copytree(made / "out", directory)
    page = json.loads((directory / "manifest.json").read_bytes())
    page.pop("checksum", None)
    page["schema"]["tfds"] = {name: "evil"}
    (directory / "manifest.json").write_text(json.dumps(page))
    before = seen(sorted(tmp_path.rglob("*")))
    says = r"schema\.tfds: expected the name of a file that is written here"
    with pytest.raises(ManifestError, match=says):
        verify.main([str(directory), "--write-sidecars"])
    if "/" not in name and name.isprintable() and name != "..":
        return  # the name of a shard may be anything that is a name
    page["schema"]["tfds"] = {}
    page["splits"]["train"]["shards"][0]["file"] = name
    (directory / "manifest.json").write_text(json.dumps(page))
    with pytest.raises(
        ManifestError,
        match=r"shards\[0\]\.file is .*: expected the name of a file that is written here",
    ):
        read_manifest(str(directory))
    before.pop(str(directory / "manifest.json"))
    assert {
        path: there for path, there in seen(sorted(tmp_path.rglob("*"))).items() if path in before
    } == before


def test_a_claim_names_files_of_its_own_directory_only(made, tmp_path):
    from pipeline.shards.typed_json import sealed_line

    shutil.copytree(made / "out", tmp_path / "out")
    (tmp_path / "victim-00000-of-00003").write_bytes(b"mine")
    claim = tmp_path / "out/_shards/train.plan.json"
    (tmp_path / "out/thesis.txt").write_bytes(b"mine")
    for changes in (
        {"files": "../victim-{SHARD_X_OF_Y}"},
        {"files": "thesis.txt"},
        {"num_shards": 10**11},
    ):
        fields = json.loads((made / "out/_shards/train.plan.json").read_bytes()) | changes
        fields.pop("checksum")
        claim.write_bytes(sealed_line(fields))
        with pytest.raises(ConversionError, match=r"train\.plan\.json: (files|num_shards) is "):
            convert(made, tmp_path / "out", "--seed=7", "--overwrite")
    assert (tmp_path / "victim-00000-of-00003").read_bytes() == b"mine"
    assert (tmp_path / "out/thesis.txt").read_bytes() == b"mine"


def test_packed_files_of_another_split_are_not_removed(made, tmp_path):
    """A second conversion may be writing them."""
    other = tmp_path / "out/_scratch/validation.0123456789abcdef-0"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"theirs")
    convert_text(made, tmp_path / "out")
    assert [path.name for path in other.parent.iterdir()] == [other.name]
