"""Dataflow, against a stand-in for its service: what a launcher submits, and that what it stages is all that is needed.

The stand-in runs nothing. The story's test does, with what was staged and nothing else, while the launcher waits."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from dataflow_stub import execution, server
from fake_gcs import stand_ins
from raw_data.imagenet import RawImagenet

from converters import imagenet_to_gcs
from pipeline.shards.manifest import read_manifest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
OUR_WHEEL = f"infeed-{VERSION}-py3-none-any.whl"
BUCKET = "dataflow"
FLAGS = ["--runner=dataflow", "--project=my-project", "--region=us-central1"]
# A user's package: its converter is known to the launcher and to the workers by this wheel alone.
BIRDS = "from converters.imagenet.converter import ImagenetConverter\n\nclass Birds(ImagenetConverter):\n    pass\n"
LAUNCHER = """
import signal
import dataclasses, os, uuid
import birds
from beam_jobs import stored_job
from beam_jobs.runners import dataflow_job
from beam_jobs.launch import exit_with, launch
from converters import command_line, imagenet_to_gcs
dataflow_job.POLL_SECONDS = 0.1
stored_job._SMALL_BYTES = 0  # as jobs are for which Dataflow is needed
def launch_with_sources(job, *given):
    sources = [dataclasses.replace(job.sources[0], uri=f"{job.sources[0].uri}.{uuid.uuid4()}") for _ in range(100_000)]
    return launch(dataclasses.replace(job, sources=tuple(sources)), *given)
if "MANY_SOURCES" in os.environ:
    command_line.launch = launch_with_sources
imagenet_to_gcs.ImagenetConverter = birds.Birds
# Who was started in the background inherits that Ctrl-C is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
exit_with(imagenet_to_gcs.main)
"""


@pytest.fixture(scope="module")
def service():
    with server.start() as started:
        yield started


@pytest.fixture(scope="module")
def place(open_bucket, gcs_server, tmp_path_factory):
    """A bucket with raw data, and their shards as a local conversion makes them."""
    raw = RawImagenet(tmp_path_factory.mktemp("raw") / "raw").write()
    golden = tmp_path_factory.mktemp("golden")
    raw.convert(golden, "--num-train-shards=3")
    with open_bucket(BUCKET) as bucket:
        for file in raw.directory.iterdir():
            gcs_server.write(BUCKET, f"raw/{file.name}", file.read_bytes())
        yield f"{bucket}/raw", golden


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A user's package as pip takes it; its code lies beside it."""
    directory = tmp_path_factory.mktemp("birds")
    (directory / "birds.py").write_text(BIRDS)
    path = directory / "birds-1.0-py3-none-any.whl"
    stated = {
        "METADATA": "Metadata-Version: 2.1\nName: birds\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("birds.py", BIRDS)
        for name, text in stated.items():
            file.writestr(f"birds-1.0.dist-info/{name}", text)
    return path


@pytest.fixture(scope="module")
def start(service, place, wheel, fork_server, tmp_path_factory):
    """start("out", *flags): a context with the command as a user runs it."""

    @contextlib.contextmanager
    def started(out, *more, key=None, **variables):
        flags = f"--raw-data-dir={place[0]} --label-file={place[0]}/synsets.txt".split()
        flags += f"--gcs-output-path=gs://{BUCKET}/{out} --num-train-shards=3".split()
        flags += [f"--extra_package={wheel}", *FLAGS, *service.flags, *more]
        path = os.pathsep.join([str(wheel.parent), str(ROOT), os.environ.get("PYTHONPATH", "")])
        env = os.environ | {"PYTHONPATH": path} | variables
        if key:
            flags.remove("--no_auth")
            env["GOOGLE_APPLICATION_CREDENTIALS"] = key
        printed = tmp_path_factory.mktemp("printed") / "printed"
        launcher = fork_server.start(["-c", LAUNCHER, *flags], printed, env)
        try:
            yield launcher
        finally:
            launcher.kill()

    return started


def counter(number, name="train_records", **context):
    return {"name": {"name": name, "context": context}, "scalar": number}


COUNTERS = [
    counter(18, namespace="infeed", step="gather"),
    counter(99, namespace="infeed", tentative="true"),
    counter(7, "other", namespace="not ours"),
]
WARNING = {"id": "m1", "time": "2026-01-02T03:04:05Z", "messageImportance": "JOB_MESSAGE_WARNING"}


@pytest.fixture(scope="module")
def story(service, start, gcs_server, tmp_path_factory):
    directory = tmp_path_factory.mktemp("story")
    service.order(messages=[WARNING | {"messageText": "workers are few"}])
    with start("out", "--label=team=vision") as launcher:
        job = service.wait_for_job(launcher)
        staged = execution.stage(gcs_server, job, directory)
        order = staged["extra_packages.txt"].read_text().split()
        python = execution.fresh_environment(directory / "venv", [staged[name] for name in order])
        ran = execution.execute(staged, python, directory / "ran")
        service.change(states=["JOB_STATE_DONE"], metrics=COUNTERS)
        status, _ = launcher.wait(45)
    return execution.Story(job, staged, python, ran, launcher.printed, status)


def test_the_staged_artifacts_alone_convert_to_the_digests_of_a_local_run(
    story, place, shard_digests, gcs_server
):
    assert story.ran.returncode == 0, story.ran.stdout + story.ran.stderr
    found, golden = shard_digests(f"gs://{BUCKET}/out"), shard_digests(place[1])
    manifests = [
        json.loads(gcs_server.read(BUCKET, "out/manifest.json")),
        json.loads(place[1].joinpath("manifest.json").read_text()),
    ]
    for digests, manifest in zip((found, golden), manifests, strict=True):
        # Its last lines tell a version, which a checkout that nobody installed does not know.
        assert digests.pop("manifest.json")
        assert manifest.pop("writer").startswith("infeed")
        assert manifest.pop("checksum")
    assert found == golden
    assert manifests[0] == manifests[1]
    assert not list(gcs_server.objects(BUCKET, "out/_scratch/"))


def test_the_launcher_shows_link_states_complaints_counters_and_the_verdict(story):
    assert story.status == 0, story.printed
    link = "https://console.cloud.google.com/dataflow/jobs/us-central1/2026-01-02_03_04_05-678?project=my-project"
    lines = story.printed.splitlines()
    assert lines[0] == f"dataflow: submitted {story.job['name']}: {link}"
    assert [line for line in lines if line.startswith("dataflow: ")][1:] == [
        "dataflow: warning: workers are few",
        "dataflow: pending",
        "dataflow: running",
        "dataflow: done: train_records 18",
    ]
    assert re.search(r"^train: .*18 records.* -> gs://dataflow/out$", story.printed, re.MULTILINE)
    assert not re.search("WARNING|Traceback|apache_beam", story.printed)


def test_a_job_has_a_name_labels_and_workers_that_fit_it(story):
    assert re.fullmatch(r"infeed-imagenet2012-\d{8}-\d{6}-[0-9a-f]{8}", story.job["name"])
    run = story.job["labels"].pop("infeed-run")
    assert story.job["name"].endswith(run[:8])
    expected = {"infeed": "conversion", "infeed-dataset": "imagenet2012", "team": "vision"}
    assert story.job["labels"] == expected
    assert story.job["type"] in ("JOB_TYPE_BATCH", 1)
    assert story.pool["machineType"] == "n2-standard-4"
    assert story.pool["diskSizeGb"] == 30
    assert story.pool["numThreadsPerWorker"] == 2
    assert story.pool["autoscalingSettings"] == {"maxNumWorkers": 1}  # 4 shards
    assert {"shuffle_mode=service", "use_runner_v2"} <= set(story.job["environment"]["experiments"])
    assert "save_main_session" not in story.options or story.options["save_main_session"] is False


def test_a_job_is_staged_next_to_its_output_under_its_own_name(story):
    prefix = f"storage.googleapis.com/{BUCKET}/infeed-dataflow"
    assert story.job["environment"]["tempStoragePrefix"].startswith(
        f"{prefix}/temp/{story.job['name']}"
    )
    for package in story.pool["packages"]:
        assert package["location"].startswith(f"{prefix}/staging/{story.job['name']}"), package


def test_the_staged_wheel_holds_our_packages_alone_and_the_users_comes_after_it(story):
    order = story.staged["extra_packages.txt"].read_text().split()
    assert order == [OUR_WHEEL, "birds-1.0-py3-none-any.whl"]
    names = zipfile.ZipFile(story.staged[order[0]]).namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"infeed", "pipeline", "trainer", "converters", "beam_jobs"}
    assert "pickled_main_session" not in story.staged


def test_without_the_wheel_the_workers_find_no_module(tmp_path):
    python = execution.fresh_environment(tmp_path / "venv", [])
    found = "from importlib.util import find_spec; print(*map(bool, map(find_spec, ('apache_beam', 'beam_jobs'))))"
    command = [python, "-I", "-c", found]
    printed = subprocess.check_output(command, cwd=tmp_path, text=True, timeout=60)
    assert printed.split() == ["True", "False"]


def command_of(page, text):
    """The arguments of python in the one command of the page that matches."""
    [line] = [line for line in (ROOT / page).read_text().splitlines() if re.search(text, line)]
    return shlex.split(line)[1:]


def test_the_pages_commands_for_imagenet_convert_into_a_bucket_and_are_accepted_by_dataflow(
    service, open_bucket, gcs_server, fork_server, tmp_path, monkeypatch
):
    local = command_of(
        "docs/large-machine.md", "^python -m converters.imagenet_to_gcs .*=gs://my-bucket/imagenet "
    )
    remote = command_of("README.md", "^python -m converters.imagenet_to_gcs .* --runner=dataflow ")
    raw = RawImagenet(tmp_path / "ILSVRC2012")
    wnids = [
        line.split()[0]
        for line in (ROOT / "converters/imagenet/synsets.txt").read_text().splitlines()[:3]
    ]
    raw.train = dict(zip(wnids, raw.train.values(), strict=True))
    raw.validation_labels = [wnids[0]] * len(raw.validation)
    raw.write()
    monkeypatch.chdir(tmp_path)
    with open_bucket("my-bucket") as bucket:
        for file in raw.directory.iterdir():
            gcs_server.write("my-bucket", f"ILSVRC2012/{file.name}", file.read_bytes())
        imagenet_to_gcs.main(local[2:])
        assert read_manifest(f"{bucket}/imagenet").split("train").num_records == 18
        for name in gcs_server.objects("my-bucket", "imagenet/"):
            gcs_server.delete("my-bucket", name)
        service.order()
        command = [*remote, *service.flags]
        launcher = fork_server.start(command, tmp_path / "printed", os.environ)
        try:
            job = service.wait_for_job(launcher)  # what a job does, the story tells
            assert job["labels"]["infeed-dataset"] == "imagenet2012"
            place = job["environment"]["tempStoragePrefix"]
            assert place.startswith("storage.googleapis.com/my-bucket/")
            launcher.wait_for("dataflow: pending")
        finally:
            launcher.kill()


@dataclass
class Detached:
    """A conversion that was submitted with credentials and left to itself; what the service was asked for."""

    printed: str
    status: int
    requests: dict[str, list[dict]]


@pytest.fixture(scope="module")
def detached(service, start, credentials):
    service.order()
    with start("detached", "--detach", key=credentials.file) as launcher:
        status, _ = launcher.wait(45)
    requests = {method: service.requests(method) for method in ("GET", "POST", "PUT")}
    return Detached(launcher.printed, status, requests)


def test_a_detached_command_exits_and_prints_how_to_cancel_the_job(detached):
    assert detached.status == 0, detached.printed
    assert "it is complete when gs://dataflow/detached/manifest.json exists" in detached.printed
    cancel = "gcloud dataflow jobs cancel 2026-01-02_03_04_05-678 --project=my-project --region=us-central1"
    assert detached.printed.rstrip().endswith(cancel)
    assert detached.requests["PUT"] == []
    # nobody waited
    assert not [request for request in detached.requests["GET"] if "/jobs/" in request["path"]]


def test_credentials_are_used_and_show_in_nothing_that_is_printed_staged_or_submitted(
    detached, gcs_server, credentials, tmp_path
):
    (submitted,) = detached.requests["POST"]
    assert submitted["authorization"] == f"Bearer {stand_ins.TOKEN}"
    staged = execution.stage(gcs_server, submitted["body"], tmp_path)
    told = [text.encode() for text in (detached.printed, json.dumps(submitted["body"]))]
    credentials.assert_not_in(*told, *(path.read_bytes() for path in staged.values()))


def test_a_job_of_100000_sources_is_far_smaller_than_what_the_service_takes(
    service, start, gcs_server, tmp_path
):
    service.order()
    with start("many", "--detach", MANY_SOURCES="1") as launcher:
        assert launcher.wait(60)[0] == 0, launcher.printed
    (submitted,) = service.requests("POST")
    graph = execution.stage(gcs_server, submitted["body"], tmp_path)["pipeline.pb"]
    assert graph.stat().st_size < 1_000_000


@pytest.mark.parametrize("flags", [[], ["--cancel-on-interrupt"]], ids=["left", "cancelled"])
def test_ctrl_c_leaves_the_job_or_cancels_it_by_choice(service, start, flags):
    service.order()
    with start("interrupted", *flags) as launcher:
        launcher.wait_for("dataflow: running")
        launcher.send_signal(signal.SIGINT)
        assert launcher.wait(45)[0] == 130
    cancelled = [request["body"]["requestedState"] for request in service.requests("PUT")]
    if flags:
        assert cancelled in (["JOB_STATE_CANCELLED"], [5])
        assert "interrupted. The job is cancelled. Run the same command again" in launcher.printed
    else:
        assert cancelled == []
        assert "interrupted. The job continues without this command" in launcher.printed
        assert "gcloud dataflow jobs cancel 2026-01-02_03_04_05-678" in launcher.printed


def test_a_template_is_written_with_all_that_its_runs_need_and_nothing_is_submitted(
    service, start, gcs_server, tmp_path
):
    service.order()
    flags = (f"--template_location=gs://{BUCKET}/templates/birds", "--job_name=birds")
    with start("templated", *flags) as launcher:
        assert launcher.wait(45)[0] == 0, launcher.printed
    run = "gcloud dataflow jobs run NAME --gcs-location=gs://dataflow/templates/birds --project=my-project"
    assert run in launcher.printed
    assert service.requests("POST") == []
    template = json.loads(gcs_server.read(BUCKET, "templates/birds"))
    assert template["name"] == "birds"
    assert {OUR_WHEEL, "pipeline.pb"} <= execution.stage(gcs_server, template, tmp_path).keys()
