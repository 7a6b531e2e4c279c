"""The command line; on Beam's local runner where the runner can make a difference."""

import argparse
import subprocess
import sys

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from converted import records_of

from converters import command_line, imagenet_to_gcs
from pipeline.errors import ConversionError, OptionError, RawDataError
from pipeline.shards.manifest import read_manifest

without_beam = pytest.mark.usefixtures("without_beam")


def run(*flags):
    command = [sys.executable, "-m", "converters.imagenet_to_gcs", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def flags_of(raw, out):
    return [f"--raw-data-dir={raw}", f"--gcs-output-path={out}", f"--label-file={raw}/synsets.txt"]


def test_shards_are_within_one_percent_of_the_mean_where_records_are_small(digits, shard_digests):
    entry = read_manifest(str(digits[1])).split("train")
    sizes = [shard.bytes for shard in entry.shards]
    mean = sum(sizes) / len(sizes)
    assert len(sizes) == 15
    assert max(abs(size / mean - 1) for size in sizes) <= 0.01
    assert len(shard_digests(digits[1])) == 15 + 4 + 2 + 2


def test_every_image_arrives_once_byte_for_byte_under_its_label(raw_imagenet, out):
    raw_imagenet.convert(out, "--num-train-shards=4", "--num-validation-shards=2")
    for split, images in (("train", {n: d for c in raw_imagenet.train.values() for n, d in c.items()}),
                          ("validation", raw_imagenet.validation)):  # fmt: skip
        records = records_of(out, split)
        assert {r["image/filename"][0].decode(): r["image/encoded"][0] for r in records} == images
        assert len(records) == len(images)
        for record in records:
            assert record["image/class/label"][0] == 1 + raw_imagenet.synsets.index(
                record["image/class/synset"][0].decode()
            )
            assert (record["image/width"], record["image/channels"]) == ([16], [3])
    assert len(list(out.glob("train-*-of-00004"))) == 4


def test_a_dry_run_tells_the_plan_and_writes_nothing(digits, tmp_path, capsys):
    raw, out = digits
    imagenet_to_gcs.main(
        [*flags_of(raw, tmp_path / "none"), "--target-shard-bytes=100KB", "--dry-run"]
    )
    printed = capsys.readouterr().out
    assert "train: 1,429 records, 1.52 MB in 15 shards of 100 KB..102 KB" in printed
    assert read_manifest(str(out)).split("train").plan_digest in printed
    assert not (tmp_path / "none").exists()


BAD_OPTIONS = [
    ("--splits=,", OptionError, "--splits=,: no split was chosen. Known: train, validation"),
    ("--num-train-shards=0", OptionError, "--num-train-shards=0: must be at least 1"),
    ("--gcs-output-path=", OptionError, r"--output is empty. Give a directory; the current one is '\.'"),
    ("--seed=-1", OptionError, "--seed=-1: must be at least 0"),
    ("--max-bad-records=-1", OptionError, "--max-bad-records=-1: must be at least 0"),
    ("--verfiy=end", OptionError, "--verfiy is neither an option of this converter nor of Apache Beam. Did you mean"),
    ("--gcs-output-path=/proc/nowhere", ConversionError, "cannot create /proc/nowhere/_shards/train.plan.json"),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "error", "message"), BAD_OPTIONS)
def test_a_bad_option_is_one_clear_error(raw_imagenet, out, flag, error, message):
    with pytest.raises(error, match=message):
        raw_imagenet.convert(out, flag)
    assert not out.exists()


def test_no_option_of_beam_is_taken_for_a_misspelling_of_ours(monkeypatch):
    monkeypatch.setattr(command_line, "_beam", lambda args, rest: None)
    ours = command_line.conversion_parser(
        "imagenet_to_gcs", "", (), ("train", "validation"), "", fraction="a part"
    )
    command = ["--raw-data-dir=raw", "--output=out"]
    for options in PipelineOptions.__subclasses__():
        theirs = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
        options._add_argparse_args(theirs)
        for name in vars(theirs.parse_args([])).keys() - vars(ours.parse_args(command)):
            command_line.parsed(ours, [*command, f"--{name}=1"])


@without_beam
@pytest.mark.parametrize(
    ("split", "error", "message"),
    [
        ("train", RawDataError, r"train\.tar has no class tars in it"),
        ("validation", ConversionError, r"split 'validation' has no records: its sources contain nothing to convert"),
    ],
)  # fmt: skip
def test_an_empty_split_is_one_clear_error(raw_imagenet, out, split, error, message):
    raw_imagenet.train, raw_imagenet.validation = {}, {}
    raw_imagenet.write()
    with pytest.raises(error, match=message):
        raw_imagenet.convert(out, f"--splits={split}")
    assert not (out / "manifest.json").exists()


@without_beam
def test_flags_of_the_original_imagenet_script_are_accepted_with_a_note(raw_imagenet, out, capsys):
    old = ["--project=p", "--local-scratch-dir=/nowhere", "--nogcs-upload"]
    raw_imagenet.convert(out, *old, "--splits=train")
    notes = capsys.readouterr().err
    assert "note: --local-scratch-dir: ignored: nothing is extracted or staged any more" in notes
    assert "note: --nogcs-upload: ignored: for shards on disk, give a local directory" in notes
    assert read_manifest(str(out)).split("train").num_records == 18


def test_help_and_dry_run_work_without_beam_and_running_names_the_extra(raw_imagenet, out):
    flags = flags_of(raw_imagenet.directory, out)
    code = (
        "import sys\n"
        "sys.modules['apache_beam'] = None\n"
        "from beam_jobs.launch import exit_with\n"
        "from converters.imagenet_to_gcs import main\n"
        f"for flags in (['--help'], {[*flags, '--dry-run']}, {flags}):\n"
        "    sys.argv[1:] = flags\n"
        "    try:\n"
        "        exit_with(main)\n"
        "        print('ended: 0')\n"
        "    except SystemExit as e:\n"
        "        print('ended:', e.code or 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    help_text, _, rest = done.stdout.partition("ended: 0\n")
    assert "--raw-data-dir" in help_text
    dry, _, wet = rest.partition("ended: 0\n")
    assert "Dry run: nothing was written." in dry
    assert wet == "ended: 2\n"
    assert "Install it: pip install -e '" in done.stderr
