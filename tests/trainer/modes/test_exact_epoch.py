"""The three errors of an epoch that was not exact each say what to do next."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pipeline.errors import EvaluationError
from trainer.exact_epoch import ExactEpoch
from trainer.inputs import LABELLED, InputInfo
from trainer.step_functions import BAD_ROWS, CRC_SUM, RECORDS

EXPLAINED = "The proof is described in ARCHITECTURE.md, How an evaluation is proven."
COMMAND = "python -m pipeline.verify data --split validation --decode"


def of(num_records=3, expected_crc=7, verify_command=COMMAND, **others):
    stated = {"num_records": num_records, "expected_crc": expected_crc, "verify_command": verify_command}
    return InputInfo({}, "data", **stated, **others)


def epoch_of(info):
    source: Any = SimpleNamespace(info=info)
    return ExactEpoch(source)


def refusal(records, crc, info):
    epoch = epoch_of(info)
    epoch.add(
        {RECORDS: np.array([records]), LABELLED: np.array([records]), BAD_ROWS: np.array([0]), CRC_SUM: np.array([crc])}
    )
    with pytest.raises(EvaluationError) as raised:
        epoch.check("evaluation", "the metrics are not the split's")
    return str(raised.value)


@pytest.mark.parametrize(
    ("records", "crc", "info", "problem"),
    [
        (2, 7, of(), "counted 2 records; the split has 3"),
        (3, 6, of(), "crcs add up to 00000006 and not to the index's 00000007"),
        (0, 0, of(None, None), "no row of the input has a _mask above 0, so the evaluation has nothing to count"),
    ],
    ids=["counts", "checksums", "nothing"],
)
def test_an_inexact_epoch_names_the_command_that_shows_damaged_records(records, crc, info, problem):
    text = refusal(records, crc, info)
    assert problem in text
    assert text.endswith(
        f" To see damaged records: {COMMAND}. If it finds none, check what is between eval_dataset and the trainer: a "
        f"wrapper, or an input or source of your own. {EXPLAINED}"
    )


def test_an_input_without_a_manifest_says_what_to_look_at():
    text = refusal(2, 7, of(verify_command=None))
    assert "Check the input's batches: in an epoch each record must come once" in text
    assert "python -m pipeline.verify DIR --decode lists damaged records" in text
    assert text.endswith(EXPLAINED)


def test_the_chapter_named_by_an_inexact_epoch_exists():
    page, chapter = EXPLAINED.removeprefix("The proof is described in ").removesuffix(".").split(", ")
    assert f"\n## {chapter}\n" in (Path(__file__).parents[3] / page).read_text()


def test_totals_are_not_compared_when_bad_records_were_left_out_or_none_are_stated():
    for on_error, bad, totals in (("mask", 1, {"num_bytes": 9}), ("raise", 0, {}), ("raise", 0, {"num_bytes": 8})):
        epoch = epoch_of(of(on_error=on_error, totals=totals))
        epoch.add(
            {
                RECORDS: np.array([3 - bad]),
                LABELLED: np.array([3 - bad]),
                BAD_ROWS: np.array([bad]),
                CRC_SUM: np.array([7]),
            }
        )
        epoch.check("evaluation", "")
        epoch.check_totals({"bits_per_byte": {"num_bytes": 8}}, "")
    epoch = epoch_of(of(totals={"num_bytes": 9}))
    with pytest.raises(EvaluationError, match="'bits_per_byte' added up num_bytes=8; the dataset states 9"):
        epoch.check_totals({"bits_per_byte": {"num_bytes": 8}}, "")
