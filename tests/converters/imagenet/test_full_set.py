"""Who says that all of ILSVRC2012 is there is told what is not."""

import pytest

from beam_jobs.converter import Source
from converters.imagenet.layouts import RawImagenet, check_full_set, ilsvrc2012_synsets
from pipeline.errors import ConversionError, OptionError, RawDataError
from pipeline.storage.storage import Stat

pytestmark = pytest.mark.usefixtures("without_beam")


def train_of(synsets):
    return RawImagenet(tuple(Source("train", "x.tar", Stat(1), tag=synset) for synset in synsets), ())


def test_the_full_set_has_all_thousand_classes_and_a_missing_one_is_named():
    synsets = list(ilsvrc2012_synsets())
    check_full_set(train_of(synsets), ["train"])
    with pytest.raises(RawDataError, match=rf"train has 998 classes of 1,000: {synsets[5]} is missing, and 1 more"):
        check_full_set(train_of(synsets[:5] + synsets[6:-1]), ["train"])


def test_other_validation_labels_than_the_official_ones_are_refused():
    with pytest.raises(RawDataError, match="the 2 validation labels are not the official 50,000"):
        check_full_set(RawImagenet((), ("n01440764", "n01443537")), ["validation"])


@pytest.mark.parametrize("flags", [[], ["--dry-run"]], ids=["run", "dry"])
def test_a_wrong_number_of_images_stops_the_conversion_before_anything_is_written(
    raw_imagenet, tmp_path, monkeypatch, flags
):
    monkeypatch.setattr("converters.imagenet_to_gcs.check_full_set", lambda *_: None)
    monkeypatch.setattr("converters.imagenet_to_gcs._converter", converter_of(raw_imagenet))
    with pytest.raises(ConversionError, match="'train' has 18 records in the raw data; the full set has 1,281,167"):
        raw_imagenet.convert(tmp_path / "out", "--full-set", "--splits=train", *flags)
    assert not list((tmp_path / "out").glob("train*"))


def converter_of(raw):
    from converters.imagenet.converter import ImagenetConverter

    return lambda _: ImagenetConverter(tuple(raw.synsets))


def test_a_class_list_of_ones_own_is_not_the_full_set(raw_imagenet, tmp_path):
    with pytest.raises(OptionError, match="--full-set means ILSVRC2012's own 1000 classes"):
        raw_imagenet.convert(tmp_path, "--full-set")
