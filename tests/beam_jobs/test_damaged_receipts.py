"""Receipts, claims, ledgers and verdicts prove themselves: a damaged one is never believed, and never a traceback."""

import json
from dataclasses import asdict

import pytest
from file_mutations import FILES, mutations, problem, write_verdict
from sweep import SWEEP

from beam_jobs.split.claims import Claim
from pipeline.commands import verify
from pipeline.errors import ConversionError
from pipeline.shards.manifest import read_manifest
from pipeline.shards.typed_json import sealed_line

pytestmark = pytest.mark.usefixtures("without_beam")

FLAGS = ("--num-train-shards=3", "--splits=train", "--max-bad-records=1")
RECEIPT, CLAIM, LEDGER = (
    "_shards/train-00001-of-00003.json",
    "_shards/train.plan.json",
    "_rejects/train.jsonl",
)


@pytest.fixture
def out(raw_imagenet, tmp_path):
    """A finished conversion of 17 records, with one in the ledger."""
    raw_imagenet.train["n00000001"]["n00000001_3.JPEG"] = b"no image"
    raw_imagenet.write().convert(tmp_path / "out", *FLAGS)
    return tmp_path / "out"


def edit(path, change):
    """Changes the fields of a JSON file, and none of its checksum."""
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields) + "\n")


DAMAGE = {
    "the index": lambda fields: fields.update(index="A" * 8 + fields["index"][8:]),
    "the key digest": lambda fields: fields.update(key_digest="0" * 32),
    "a count": lambda fields: fields.update(fixups={"png_to_jpeg": 1}),
    "a shard's checksum": lambda fields: fields.update(crc32c=fields["crc32c"] ^ 1),
    "its own checksum": lambda fields: fields.update(checksum="00000000"),
    "the name of a field": lambda fields: fields.update(chacksum=fields.pop("checksum")),
    "a type": lambda fields: fields.update(records=str(fields["records"])),
    "no checksum": lambda fields: fields.pop("checksum"),
}


@pytest.mark.parametrize("flags", [[], ["--verify-existing"]], ids=["plain", "verify_existing"])
def test_a_shard_with_a_damaged_receipt_is_unfinished(raw_imagenet, out, shard_digests, flags):
    good, receipt = shard_digests(out), (out / RECEIPT).read_text()
    for damage in DAMAGE.values():
        (out / "manifest.json").unlink()
        edit(out / RECEIPT, damage)
        raw_imagenet.convert(out, *FLAGS, *flags)
        assert shard_digests(out) == good
        assert (out / RECEIPT).read_text() == receipt


def test_a_damaged_claim_is_rebuilt_where_intact_receipts_agree_on_it(
    raw_imagenet, out, shard_digests
):
    good, claim = shard_digests(out), (out / CLAIM).read_text()
    (out / "manifest.json").unlink()
    for damaged in (
        "{",
        claim.replace('"seed": 0', '"seed": 1'),
        claim.replace("checksum", "chacksum"),
    ):
        (out / CLAIM).write_text(damaged)
        raw_imagenet.convert(out, *FLAGS)
        assert (out / CLAIM).read_text() == claim
        assert shard_digests(out) == good


def test_a_damaged_claim_that_no_receipt_confirms_is_a_one_line_error_with_the_remedy(
    raw_imagenet, out
):
    (out / CLAIM).write_text("{")
    line = (
        r"train\.plan\.json.* It is damaged.*Repeat the options that .* or give another directory"
    )
    with pytest.raises(ConversionError, match=line):
        raw_imagenet.convert(out, *FLAGS, "--seed=7", "--overwrite")
    for path in (out / "_shards").glob("train-*"):
        path.unlink()
    (out / "manifest.json").unlink()
    with pytest.raises(ConversionError, match=line):
        raw_imagenet.convert(out, *FLAGS)
    claim = Claim("p", 0, 1, 1, 0, None, "{SPLIT}-{SHARD_X_OF_Y}", {})
    (out / CLAIM).write_bytes(sealed_line(asdict(claim)))
    wrong = r"train\.plan\.json: num_shards is 0: expected int >= 1\. It is damaged"
    with pytest.raises(ConversionError, match=wrong):
        raw_imagenet.convert(out, *FLAGS)
    for path in out.glob("train-*"):
        path.unlink()
    raw_imagenet.convert(out, *FLAGS)  # nothing is left that a claim could be for
    assert read_manifest(str(out)).split("train").num_records == 17


def test_verify_reads_the_ledger_and_the_same_command_repairs_it(raw_imagenet, out, capsys):
    ledger = (out / LEDGER).read_text()
    fields = json.loads(ledger)
    unsealed = {name: value for name, value in fields.items() if name != "checksum"}
    for damaged, said in [
        (ledger.replace("convert", "Convert"), LEDGER),
        (ledger[:-3], LEDGER),
        ("", LEDGER),
        (ledger + ledger, LEDGER),
        (ledger.replace('"k', '"K'), LEDGER),
        (json.dumps(fields | {"checksum": "0"}), "its checksum is '0'"),
        (json.dumps(fields | {"more": 1}), "checksum"),
        (None, "missing"),
        (json.dumps(unsealed), "line 1: it has no checksum."),
        (sealed_line(unsealed | {"offset": "1"}).decode(), 'line 1: offset is "1": expected int,'),
        (sealed_line(unsealed | {"x": 1}).decode(), "key x is unk"),
    ]:
        (out / LEDGER).unlink() if damaged is None else (out / LEDGER).write_text(damaged)
        assert verify.main([str(out)]) == 1
        assert said in capsys.readouterr().out.replace("\n", "")
    raw_imagenet.convert(out, *FLAGS, "--verify-existing")
    assert (out / LEDGER).read_text() == ledger
    assert verify.main([str(out)]) == 0


@pytest.mark.slow
def test_no_mutation_of_receipts_claims_ledger_and_verdicts_is_believed(
    raw_imagenet, tmp_path, capsys
):
    raw_imagenet.train["n00000001"]["n00000001_3.JPEG"] = b"no image"
    raw_imagenet.write()

    def convert(place, verify_existing):
        flags = ["--splits=train", "--num-train-shards=3", "--max-bad-records=1"]
        raw_imagenet.convert(place, *flags, *["--verify-existing"] * verify_existing)

    convert(tmp_path / "out", False)
    write_verdict(tmp_path / "out")
    for mutation in mutations(tmp_path / "out", (250 if SWEEP else 4) * len(FILES), seed=1):
        assert problem(mutation, tmp_path / "out", tmp_path / "place", convert) == "", mutation
