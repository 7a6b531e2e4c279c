"""The README's whole journey in a bucket: raw data, shards, training, a checkpoint, its evaluation, and going on.

The same bytes, parameters and metrics as with everything on a disk, although one request in twenty fails."""

import json
import os

import pytest
from fake_gcs.server import Reset, Short, Status

from converters import imagenet_to_gcs
from pipeline.storage import gcs_calls
from trainer.__main__ import main
from trainer.checkpointing import tensorstore_specs

pytestmark = pytest.mark.slow

STEPS = (10, 20)  # of the first command, and where the second one ends


@pytest.fixture(scope="module", autouse=True)
def _quick_retries():
    """Milliseconds between two attempts, for our own client and for tensorstore."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs_calls, "WAIT_SECONDS", (0.01, 0.1))
        waits = {"max_retries": 7, "initial_delay": "10ms", "max_delay": "100ms"}
        patch.setattr(tensorstore_specs, "RETRIES", waits)
        yield


def flags(shards, workdir, *more):
    options = f"digits --data-dir={shards} --workdir={workdir} --iterations-per-loop=5"
    return [*options.split(), *more]


def train_and_go_on(shards, workdir):
    for steps in STEPS:
        assert main(flags(shards, workdir, f"--max-steps={steps}")) == 0
    assert main(flags(shards, workdir, "--mode=evaluate")) == 0


def travel(bucket, digits, server):
    """From raw data in the bucket to its shards and the model."""
    for file in digits[0].iterdir():
        server.write(bucket.removeprefix("gs://"), f"raw/{file.name}", file.read_bytes())
    raw, shards = f"{bucket}/raw", f"{bucket}/shards"
    options = f"--raw-data-dir={raw} --gcs-output-path={shards} --label-file={raw}/synsets.txt"
    imagenet_to_gcs.main([*options.split(), "--target-shard-bytes=100KB"])
    train_and_go_on(shards, f"{bucket}/model")


FAULTS = [Status(503), Status(429), Status(500, when="after")]
FAULTS += [Reset(), Reset(when="after"), Short()]


@pytest.fixture(scope="module")
def journey(open_bucket, digits, gcs_server):
    """(a bucket at the end of the journey, the requests made): one in twenty failed."""
    with open_bucket("journey") as bucket:
        gcs_server.reset()
        for number, fault in enumerate(FAULTS):
            gcs_server.fail_share(".", fault, 0.05 / len(FAULTS), seed=number)
        travel(bucket, digits, gcs_server)
        requests = gcs_server.requests()
        gcs_server.reset()
        yield bucket, requests


def test_the_journey_with_failing_requests_ends_with_the_results_on_disk(
    journey, digits, tmp_path, shard_digests, downloaded, saved
):
    bucket, requests = journey
    struck = [request for request in requests if request.fault]
    assert len(struck) > 0.03 * len(requests)
    for kind in ("raw/", "shards/train-", "model/"):
        assert [request for request in struck if kind in request.line.replace("%2F", "/")], kind

    def result(workdir):
        report = json.loads((workdir / "eval_result.json").read_text())
        return {key: value for key, value in report.items() if key not in ("seconds", "data")}

    train_and_go_on(digits[1], tmp_path)
    assert shard_digests(downloaded(f"{bucket}/shards")) == shard_digests(digits[1])
    model = downloaded(f"{bucket}/model")
    (arrays, position), (expected, expected_position) = (
        saved(workdir, STEPS[1]) for workdir in (model, tmp_path)
    )
    assert len(expected) > 10
    assert arrays.keys() == expected.keys()
    assert [name for name in arrays if arrays[name].tobytes() != expected[name].tobytes()] == []
    assert position == expected_position
    assert result(model) == result(tmp_path)
    assert result(model)["proven"]


def test_the_page_of_an_evaluation_is_written_to_a_bucket(journey, gcs_server, capsys):
    there, _ = journey
    path = f"{there}/pages/evaluation.html"
    evaluate = ("--mode=evaluate", f"--report={path}")
    assert main(flags(f"{there}/shards", f"{there}/model", *evaluate)) == 0
    assert f"evaluation page written to {path}\n" in capsys.readouterr().out
    page = gcs_server.read(there.removeprefix("gs://"), "pages/evaluation.html").decode()
    assert f"checkpoint {there}/model/checkpoints/{STEPS[1]}" in page
    assert "proven: every record that was due counted exactly once" in page
    assert page.count("<img ") == 24


def test_credentials_are_used_and_show_in_no_output_object_or_event(
    journey, gcs_server, run_forked, credentials
):
    there, _ = journey
    key = {"GOOGLE_APPLICATION_CREDENTIALS": credentials.file}
    env = os.environ | key | {"JAX_PLATFORMS": "cpu"}
    # By https and with a token, as in production; the proxy brings it to the server.
    env["TENSORSTORE_CA_BUNDLE"] = env["CURL_CA_BUNDLE"]
    shortcuts = "STORAGE_EMULATOR_HOST TENSORSTORE_GCS_HTTP_URL GOOGLE_AUTH_TOKEN_FOR_TESTING"
    for shortcut in shortcuts.split():
        del env[shortcut]
    gcs_server.reset()
    # an error is to be told, too
    gcs_server.fail("POST .*secret/eval_result", Status(403), times=None)
    command = ["-m", "trainer", *flags(f"{there}/shards", f"{there}/secret", "--max-steps=5")]
    code, printed = run_forked(command, timeout=100, env=env)
    assert code == 2, printed
    assert "error: cannot write gs://journey/secret/eval_result.json: permission denied" in printed
    assert all(request.authorization for request in gcs_server.requests("/b/journey/"))
    objects = gcs_server.objects("journey", "secret/")
    assert len([name for name in objects if "tfevents" in name]) == 2
    assert "secret/checkpoints/5/commit_success.txt" in objects
    contents = (gcs_server.read("journey", name) for name in objects)
    credentials.assert_not_in(printed.encode(), *contents)
