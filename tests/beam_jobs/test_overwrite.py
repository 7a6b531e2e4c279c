"""A directory that holds shards already: what joins, what is refused, what --overwrite removes."""

import contextlib

import pytest

from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage

pytestmark = pytest.mark.usefixtures("without_beam")

OTHER_PLANS = {"seed": "--seed=7", "verify": "--verify=decode"}  # what differs -> the option


@pytest.fixture
def out(raw_imagenet, tmp_path):
    raw_imagenet.convert(tmp_path / "out", "--num-train-shards=3", "--splits=train")
    return tmp_path / "out"


def files(out):
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


def test_validation_joins_a_day_later_and_train_stays_untouched(
    raw_imagenet, out, tmp_path, shard_digests
):
    train = {path.name: path.stat().st_ino for path in out.glob("train-*")}
    raw_imagenet.convert(out, "--splits=validation", "--num-validation-shards=2")
    assert {path.name: path.stat().st_ino for path in out.glob("train-*")} == train
    raw_imagenet.convert(tmp_path / "both", "--num-train-shards=3", "--num-validation-shards=2")
    assert shard_digests(out) == shard_digests(tmp_path / "both")
    assert (out / "dataset_info.json").read_text() == (
        tmp_path / "both/dataset_info.json"
    ).read_text()


@pytest.mark.parametrize("change", OTHER_PLANS)
def test_another_plan_is_refused_with_both_digests_and_the_way_out(
    raw_imagenet, out, shard_digests, change
):
    before = shard_digests(out)
    old = read_manifest(str(out)).split("train").plan_digest
    message = rf"holds split 'train' of another plan: {old} \(3 shards, .*; this one is \w{{32}} .* What differs: {change}(, rows)?\. .*--overwrite"
    with pytest.raises(ConversionError, match=message):
        raw_imagenet.convert(out, "--num-train-shards=3", "--splits=train", OTHER_PLANS[change])
    assert shard_digests(out) == before


def test_a_conversion_that_is_refused_before_it_writes_claims_nothing(
    raw_imagenet, out, raw_image_folder, tmp_path
):
    with pytest.raises(ConversionError, match="less than the mean record of split 'validation'"):
        raw_imagenet.convert(tmp_path / "tiny", "--num-train-shards=3", "--target-shard-bytes=1")
    assert not files(tmp_path / "tiny")
    before = files(out)
    with pytest.raises(ConversionError, match="holds split 'train' of another plan"):
        raw_imagenet.convert(out, "--num-validation-shards=2", "--splits=validation,train")
    assert files(out) == before
    raw_image_folder.write()
    with pytest.raises(
        ConversionError, match="'validation' has no records.* Give another --validation-fraction"
    ):
        raw_image_folder.convert(
            tmp_path / "none", "--max-bad-records=9", "--validation-fraction=0.000001"
        )
    raw_image_folder.convert(tmp_path / "none", "--max-bad-records=9", "--validation-fraction=0.3")


@pytest.mark.parametrize("flags", [[], ["--overwrite"]], ids=["plain", "overwrite"])
@pytest.mark.parametrize("indexed", [False, True])
def test_shards_that_no_conversion_wrote_are_never_replaced(
    raw_imagenet, out, tmp_path, shard_digests, flags, indexed
):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for shard in out.glob("train-*"):
        (foreign / shard.name).write_bytes(shard.read_bytes())
    if indexed:
        (foreign / "manifest.json").write_bytes((out / "manifest.json").read_bytes())
    before = shard_digests(foreign)
    with pytest.raises(
        ConversionError, match="no conversion into this directory wrote: found train-00000-of-"
    ):
        raw_imagenet.convert(foreign, "--splits=train", *flags)
    assert shard_digests(foreign) == before


def test_a_split_of_a_foreign_manifest_is_refused_even_without_its_shards(
    raw_imagenet, out, tmp_path
):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "manifest.json").write_bytes((out / "manifest.json").read_bytes())
    with pytest.raises(
        ConversionError, match="no conversion into this directory wrote: found a manifest"
    ):
        raw_imagenet.convert(foreign, "--splits=train", "--overwrite")
    assert [path.name for path in foreign.iterdir() if path.is_file()] == ["manifest.json"]


def test_another_label_file_is_refused(raw_imagenet, out):
    raw_imagenet.synsets.append("n99999999")
    with pytest.raises(ConversionError, match="of another plan"):
        raw_imagenet.write_labels().convert(out, "--num-train-shards=3", "--splits=train")


def test_overwriting_gives_a_fresh_conversion_and_removes_exactly_the_old_files(
    raw_imagenet, out, tmp_path, shard_digests
):
    raw_imagenet.convert(out, "--splits=validation")
    foreign = {"notes.txt", "train-extra.csv", "_shards/mine.json", "train-00000-of-00009"}
    for name in foreign:
        (out / name).write_text("mine")
    kept = {path.name: path.stat().st_ino for path in out.glob("validation-*")}
    raw_imagenet.convert(out, "--num-train-shards=5", "--splits=train", "--overwrite")
    raw_imagenet.convert(tmp_path / "fresh", "--num-train-shards=5", "--splits=train")
    raw_imagenet.convert(tmp_path / "fresh", "--splits=validation")
    assert files(out) == files(tmp_path / "fresh") | foreign
    assert {k: v for k, v in shard_digests(out).items() if k not in foreign} == shard_digests(
        tmp_path / "fresh"
    )
    assert {path.name: path.stat().st_ino for path in out.glob("validation-*")} == kept


def test_overwriting_with_the_same_plan_touches_no_shard(raw_imagenet, out):
    before = {path.name: path.stat().st_ino for path in out.glob("train-*")}
    raw_imagenet.convert(out, "--num-train-shards=3", "--splits=train", "--overwrite")
    assert {path.name: path.stat().st_ino for path in out.glob("train-*")} == before


def test_an_overwrite_that_breaks_off_leaves_no_manifest_and_can_be_repeated(
    raw_imagenet, out, monkeypatch, shard_digests
):
    publish = LocalStorage.publish

    @contextlib.contextmanager
    def failing(self, path):
        if path.endswith("train.plan.json"):
            raise ConversionError("broken off")
        with publish(self, path) as sink:
            yield sink

    flags = ("--num-train-shards=5", "--splits=train", "--overwrite")
    monkeypatch.setattr(LocalStorage, "publish", failing)
    with pytest.raises(ConversionError, match="broken off"):
        raw_imagenet.convert(out, *flags)
    monkeypatch.undo()
    assert not (out / "manifest.json").exists()
    assert not list(out.glob("train-*"))
    raw_imagenet.convert(out, *flags)
    assert len(list(out.glob("train-*-of-00005"))) == 5


def test_new_labels_are_refused_before_overwriting_if_another_split_keeps_the_old_ones(
    raw_imagenet, out, shard_digests
):
    raw_imagenet.convert(out, "--splits=validation")
    before = shard_digests(out)
    raw_imagenet.synsets.append("n99999999")
    raw_imagenet.write_labels()
    with pytest.raises(
        ConversionError, match=r"holds validation of dataset .*convert all splits again"
    ):
        raw_imagenet.convert(out, "--splits=train", "--overwrite")
    assert shard_digests(out) == before
    raw_imagenet.convert(out, "--overwrite")
    assert read_manifest(str(out)).labels.names[-1] == "n99999999"


def test_a_damaged_shard_of_the_right_size_is_found_by_verify_existing(
    raw_imagenet, out, tmp_path, shard_digests
):
    good = shard_digests(out)
    path = out / "train-00001-of-00003"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    raw_imagenet.convert(out, "--num-train-shards=3", "--splits=train")
    assert shard_digests(out) != good  # resuming measures sizes, and says so
    raw_imagenet.convert(out, "--num-train-shards=3", "--splits=train", "--verify-existing")
    assert shard_digests(out) == good


def test_repaired_raw_data_replaces_a_failed_conversion(raw_imagenet, tmp_path):
    raw = raw_imagenet
    good = raw.train["n00000001"]["n00000001_0.JPEG"]
    raw.train["n00000001"]["n00000001_0.JPEG"] = b""
    with pytest.raises(ConversionError, match="1 bad record;"):
        raw.write().convert(tmp_path / "out", "--splits=train")
    raw.train["n00000001"]["n00000001_0.JPEG"] = good
    with pytest.raises(ConversionError, match="--overwrite"):
        raw.write().convert(tmp_path / "out", "--splits=train")
    raw.convert(tmp_path / "out", "--splits=train", "--overwrite")
    assert read_manifest(str(tmp_path / "out")).split("train").rejected == 0
