"""No changed bit in what a conversion writes for itself is ever believed: a few of them, a thousand in .ci/sweep."""

import pytest
from file_mutations import FILES, mutations, problem, write_verdict
from sweep import SWEEP

pytestmark = pytest.mark.usefixtures("without_beam")


@pytest.mark.slow
def test_no_mutation_of_receipts_claims_ledger_and_verdicts_is_believed(raw_imagenet, tmp_path, capsys):
    raw_imagenet.train["n00000001"]["n00000001_3.JPEG"] = b"no image"
    raw_imagenet.write()

    def convert(place, verify_existing):
        flags = ["--splits=train", "--num-train-shards=3", "--max-bad-records=1"]
        raw_imagenet.convert(place, *flags, *["--verify-existing"] * verify_existing)

    convert(tmp_path / "out", False)
    write_verdict(tmp_path / "out")
    for mutation in mutations(tmp_path / "out", (250 if SWEEP else 4) * len(FILES), seed=1):
        assert problem(mutation, tmp_path / "out", tmp_path / "place", convert) == "", mutation
