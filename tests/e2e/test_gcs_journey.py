"""The README's whole journey in a bucket: raw data, shards, training, a checkpoint, its evaluation, and going on.

The same bytes, parameters and metrics as with everything on a disk, although one request in twenty fails."""

import json
import logging
import os

import pytest
from fake_gcs import stand_ins
from fake_gcs.server import Reset, Short, Status

from converters import imagenet_to_gcs
from pipeline.storage import gcs_calls
from trainer.__main__ import main
from trainer.checkpointing import orbax_paths

pytestmark = pytest.mark.slow

SECRET = "a-planted-secret-that-must-not-show"
STEPS = (10, 20)  # of the first command, and where the second one ends


@pytest.fixture(scope="module", autouse=True)
def _quiet_logging():
    before = {name: logging.getLogger(name).level for name in ("trainer", "absl", "asyncio")}
    yield
    for name, level in before.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture(scope="module", autouse=True)
def _quick_retries():
    """Milliseconds between two attempts, for our own client and for tensorstore."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gcs_calls, "WAIT_SECONDS", (0.01, 0.1))
        waits = {"max_retries": 7, "initial_delay": "10ms", "max_delay": "100ms"}
        patch.setattr(orbax_paths, "TENSORSTORE_RETRIES", waits)
        yield


def flags(shards, workdir, *more):
    return [
        "digits",
        f"--data-dir={shards}",
        f"--workdir={workdir}",
        "--iterations-per-loop=5",
        *more,
    ]


def train_and_go_on(shards, workdir):
    for steps in STEPS:
        assert main(flags(shards, workdir, f"--max-steps={steps}")) == 0
    assert main(flags(shards, workdir, "--mode=evaluate")) == 0


def travel(bucket, digits, server):
    """From raw data in the bucket to its shards and the model."""
    for file in digits[0].iterdir():
        server.write(bucket.removeprefix("gs://"), f"raw/{file.name}", file.read_bytes())
    raw, shards = f"{bucket}/raw", f"{bucket}/shards"
    labels = f"--label-file={raw}/synsets.txt"
    imagenet_to_gcs.main(
        [
            f"--raw-data-dir={raw}",
            f"--gcs-output-path={shards}",
            labels,
            "--target-shard-bytes=100KB",
        ]
    )
    train_and_go_on(shards, f"{bucket}/model")


FAULTS = [
    Status(503),
    Status(429),
    Status(500, when="after"),
    Reset(),
    Reset(when="after"),
    Short(),
]


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


@pytest.fixture
def there(journey):
    """The bucket."""
    return journey[0]


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


def test_the_page_of_an_evaluation_is_written_to_a_bucket(there, gcs_server, capsys):
    path = f"{there}/pages/evaluation.html"
    assert (
        main(flags(f"{there}/shards", f"{there}/model", "--mode=evaluate", f"--report={path}")) == 0
    )
    assert f"evaluation page written to {path}\n" in capsys.readouterr().out
    page = gcs_server.read(there.removeprefix("gs://"), "pages/evaluation.html").decode()
    assert f"checkpoint {there}/model/checkpoints/{STEPS[1]}" in page
    assert "proven: every record that was due counted exactly once" in page
    assert page.count("<img ") == 24


def test_credentials_are_used_and_show_in_no_output_object_or_event(
    there, gcs_server, run_forked, tmp_path
):
    key = {
        "type": "authorized_user",
        "client_id": "c",
        "client_secret": SECRET,
        "refresh_token": SECRET,
    }
    (tmp_path / "key.json").write_text(json.dumps(key))
    env = os.environ | {
        "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
        "JAX_PLATFORMS": "cpu",
    }
    # By https and with a token, as in production; the proxy brings it to the server.
    env["TENSORSTORE_CA_BUNDLE"] = env["CURL_CA_BUNDLE"]
    for shortcut in (
        "STORAGE_EMULATOR_HOST",
        "TENSORSTORE_GCS_HTTP_URL",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING",
    ):
        del env[shortcut]
    gcs_server.reset()
    # an error is to be told, too
    gcs_server.fail("POST .*secret/eval_result", Status(403), times=None)
    command = ["-m", "trainer", *flags(f"{there}/shards", f"{there}/secret", "--max-steps=5")]
    code, printed = run_forked(command, timeout=100, env=env)
    assert code == 2, printed
    assert "error: cannot write gs://journey/secret/eval_result.json: permission denied" in printed
    assert [
        request for request in gcs_server.requests("/b/journey/") if not request.authorization
    ] == []
    objects = gcs_server.objects("journey", "secret/")
    assert len([name for name in objects if "tfevents" in name]) == 2
    assert "secret/checkpoints/5/commit_success.txt" in objects
    for content in (printed.encode(), *(gcs_server.read("journey", name) for name in objects)):
        assert SECRET.encode() not in content
        assert stand_ins.TOKEN.encode() not in content
