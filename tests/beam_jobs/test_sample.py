"""A sample of the records says how a converter changes sizes: how many shards there have to be."""

import dataclasses
import io
import random

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from beam_jobs.converter import ConversionJob
from beam_jobs.launch import launch, preview
from beam_jobs.rows.references import concat
from beam_jobs.split.plan import Candidate, Sampled, candidates, convert_sample, lowest
from converters.command_line import beam_options
from converters.image_folder.converter import ImageFolderConverter
from converters.image_folder.layouts import find_folders
from converters.raw.splits import HeldOut
from pipeline.shards.manifest import read_manifest
from pipeline.storage.local import LocalStorage

IMAGES, TARGET = 900, 200_000


def png(seed):
    pixels = np.random.default_rng(seed).integers(0, 255, (64, 20 + seed % 30, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A folder of PNGs, most of which are larger than the JPEGs that they become; one is no image."""
    raw = tmp_path_factory.mktemp("sample") / "raw"
    (raw / "noise").mkdir(parents=True)
    for i in range(IMAGES):
        (raw / f"noise/{i}.png").write_bytes(png(i))
    (raw / "noise/0.png").write_bytes(b"no image")
    found = find_folders(str(raw), [], HeldOut(0.0))
    converter = ImageFolderConverter(found.classes, HeldOut(0.0))
    return ConversionJob(
        converter,
        found.sources,
        str(raw.parent / "out"),
        target_shard_bytes=TARGET,
        max_bad_records=1,
    )


def rows(job):
    return concat(
        [refs for source in job.sources for refs in job.converter.scan(LocalStorage(), source)]
    )


@pytest.mark.slow
def test_shards_of_records_that_change_size_come_out_near_the_target(job):
    (planned,) = preview(job)
    args = type("Args", (), {"runner": "local", "local_processes": 1})
    launch(job, beam_options(args, []), Console(quiet=True))
    shards = [shard.bytes for shard in read_manifest(job.output_dir).split("train").shards]
    raw_bytes = sum(int(n) for n in rows(job).size)
    assert raw_bytes > 1.5 * sum(shards)
    assert len(shards) == len(planned.shard_bytes) == round(sum(shards) / TARGET)
    assert sum(planned.shard_bytes) == pytest.approx(sum(shards), rel=0.1)
    assert max(abs(size - TARGET) for size in shards) <= 0.1 * TARGET + TARGET / len(shards) / 2


def test_the_sample_does_not_depend_on_how_the_scan_was_cut_or_ordered(job):
    refs = rows(job)
    numbers = list(range(len(refs)))
    random.Random(0).shuffle(numbers)
    parts = [refs.take(np.array(numbers[i::7])) for i in range(7)]
    whole = lowest([candidates(job, "train", refs)])
    assert whole == lowest(candidates(job, "train", part) for part in parts)
    assert 60 < len(whole) < 180  # an eighth of 900
    assert convert_sample(job, whole).written < convert_sample(job, whole).predicted


def test_nothing_is_sampled_if_record_sizes_or_the_shard_count_are_known(job):
    class Known(ImageFolderConverter):
        transforms = False

    demanded = dataclasses.replace(job, num_shards={"train": 3})
    known = dataclasses.replace(job, converter=Known(job.converter.classes))
    for each in (demanded, known):
        assert candidates(each, "train", rows(job)) == []
        assert convert_sample(each, []) == Sampled()
    assert Sampled().scaled(123) == 123


def test_a_sample_without_a_valid_image_does_not_change_the_estimate(job, tmp_path):
    (tmp_path / "raw/noise").mkdir(parents=True)
    for i in range(50):
        (tmp_path / f"raw/noise/{i}.png").write_bytes(b"no image")
    bad = dataclasses.replace(
        job, sources=find_folders(str(tmp_path / "raw"), [], HeldOut(0.0)).sources
    )
    sample = candidates(bad, "train", rows(bad))
    assert sample
    assert convert_sample(bad, sample) == Sampled()


def test_a_small_split_is_sampled_whatever_the_ranks_of_its_records(job):
    few = rows(job).take(np.arange(1, 13))
    for seed in range(20):
        seeded = dataclasses.replace(job, seed=seed)
        whole = lowest([candidates(seeded, "train", few)])
        parts = lowest(candidates(seeded, "train", few.take(np.arange(i, 12, 5))) for i in range(5))
        assert whole == parts
        assert len(whole) == 12
    assert len(lowest([candidates(job, "train", rows(job).take(np.arange(1, 41)))])) == 16


def test_which_of_two_rows_with_one_key_is_sampled_does_not_depend_on_their_order(job):
    ref = next(iter(rows(job)))
    twice = [dataclasses.replace(ref, columns={**ref.columns, "label": label}) for label in (2, 1)]
    offered = [[Candidate(5, 10, each)] for each in twice]
    assert lowest(offered) == lowest(offered[::-1])


def test_the_sample_takes_the_records_of_lowest_rank_whatever_their_size(job):
    ref = next(iter(rows(job)))
    offered = [Candidate(rank, 5000 - rank, ref) for rank in range(1000)]
    assert [each.rank for each in lowest([offered[::2], offered[1::2]])] == list(range(256))
