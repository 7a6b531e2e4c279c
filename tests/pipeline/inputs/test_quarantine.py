"""The list of bad records: on the input, in the log and in a quarantine file."""

import json
import logging
import shutil

import pytest
from bad_pictures import BAD, OPS
from host_batches import taken

from pipeline.datasets import BadRecord, eval_dataset
from pipeline.errors import OptionError
from pipeline.hosts import Hosts


def test_each_bad_record_is_listed_once_and_warned_of_once(pictures, tmp_path, caplog):
    # Data of its own: a batch that the test before left undecoded may still be warned of.
    directory = str(shutil.copytree(pictures[1], tmp_path / "own"))
    source = eval_dataset(directory, global_batch=4, ops=OPS, on_error="mask")
    assert source.quarantine == ()
    with caplog.at_level(logging.WARNING, "pipeline"):
        taken(source)
        taken(source)
    assert [bad.record_id for bad in source.quarantine] == BAD
    one = source.quarantine[0]
    assert isinstance(one, BadRecord)
    assert one.where.endswith("(record 3 of 'validation')")
    assert one.reason.startswith(
        f"{one.where}: the JPEG image is damaged or truncated. Replace it and"
    )
    warnings = [text for text in caplog.messages if directory in text]
    assert sorted(warnings) == sorted(
        f"on_error='mask' leaves out a bad record: {b.reason}" for b in source.quarantine
    )


def test_a_quarantine_file_collects_the_bad_records_of_all_hosts_and_runs(pictures, tmp_path):
    path = tmp_path / "new" / "bad.jsonl"
    written = []
    for index in (1, 0, 1):
        hosts = Hosts(index, 2)
        options = {"ops": OPS, "on_error": "mask", "quarantine_file": path}
        taken(eval_dataset(pictures[1], global_batch=4, hosts=hosts, **options))
        written.append(path.read_bytes())
    assert len(written[0].splitlines()) == 4  # rows 2 and 3 of every batch: 3, 10, 11, 23
    assert written[1] == written[2]
    lines = [json.loads(line) for line in written[1].splitlines()]
    assert [line["record_id"] for line in lines] == BAD
    assert [line.keys() for line in lines] == [{"record_id", "where", "reason"}] * len(BAD)


def test_a_foreign_file_is_not_used_as_quarantine_and_an_unwritable_one_is_a_warning(
    pictures, tmp_path, caplog
):
    other = tmp_path / "labels.txt"
    other.write_text("cat\n")
    refusal = r"quarantine_file='.*labels.txt' .* It is not a quarantine file: .* a new one"
    with pytest.raises(OptionError, match=refusal):
        eval_dataset(pictures[1], global_batch=4, on_error="mask", quarantine_file=other)
    nowhere = other / "inside" / "bad.jsonl"  # inside a file
    source = eval_dataset(
        pictures[1], global_batch=4, ops=OPS, on_error="mask", quarantine_file=nowhere
    )
    assert len(taken(source)) == 6
    assert "bad records are only in the log, not in the quarantine_file" in caplog.text
