"""The whole journey in a bucket of S3 while requests fail: shards, training, resuming, evaluation, predictions, export."""

import json
from pathlib import Path

import pytest
from fake_s3.server import SECRET, Reset, Short, Status
from pictures import encoded, picture

from pipeline.storage.schemes import open_storage
from pipeline.storage.storage import write_file
from trainer.__main__ import main
from trainer.checkpointing import tensorstore_specs
from trainer.commands.predict import main as predict
from trainer.commands.report import main as report

pytestmark = pytest.mark.slow

FAULTS = [Status(503), Status(429), Status(500, when="after"), Reset(), Short()]
EXPORTED = {
    "saved_model.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
}


def results(place, shards, pictures):
    """The metrics and predictions of a run whose work directory is at a place, resumed once."""
    flags = f"digits --data-dir={shards} --workdir={place}/run --iterations-per-loop=5".split()
    for steps in (10, 20):
        assert main([*flags, f"--max-steps={steps}"]) == 0
    assert main([*flags, "--mode=evaluate", f"--report={place}/page.html"]) == 0
    assert not predict([f"{place}/run", *pictures, f"--output={place}/predictions.jsonl"])
    storage = open_storage(place)
    result = json.loads(storage.read(f"{place}/run/eval_result.json"))
    return (
        {key: value for key, value in result.items() if key not in ("seconds", "data")},
        storage.read(f"{place}/predictions.jsonl"),
    )


def test_a_journey_whose_requests_fail_ends_as_on_a_disk(
    digits, s3_bucket, s3_server, monkeypatch, tmp_path, capfd
):
    waits = {"max_retries": 7, "initial_delay": "10ms", "max_delay": "100ms"}
    monkeypatch.setattr(tensorstore_specs, "RETRIES", waits)
    pictures = []
    for number in range(3):
        pictures.append(str(tmp_path / f"{number}.jpg"))
        Path(pictures[-1]).write_bytes(encoded(picture(32, 32).convert("L"), "JPEG"))
    for file in digits[1].rglob("*"):
        if file.is_file():
            name = f"{s3_bucket}/shards/{file.relative_to(digits[1])}"
            write_file(open_storage(s3_bucket), name, file.read_bytes())
    expected = results(str(tmp_path), digits[1], pictures)
    s3_server.reset()
    for number, fault in enumerate(FAULTS):
        s3_server.fail_share(".", fault, 0.03 / len(FAULTS), seed=number)
    run = f"{s3_bucket}/run"
    assert results(s3_bucket, f"{s3_bucket}/shards", pictures) == expected
    assert expected[0]["proven"]
    assert not report([run])
    flags = [f"--data-dir={s3_bucket}/shards", f"--workdir={run}", "--mode=export"]
    assert main(["digits", *flags]) == 0
    bucket = s3_bucket.removeprefix("s3://")
    exported = s3_server.objects(bucket, "run/export/")
    assert {name.split("/", 3)[3] for name in exported} >= EXPORTED
    assert {request["host"] for request in s3_server.requests()} == {"127.0.0.1"}
    assert SECRET not in "".join(capfd.readouterr())
    for name in s3_server.objects(bucket):
        assert SECRET.encode() not in s3_server.read(bucket, name), name
