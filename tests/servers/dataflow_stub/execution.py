"""What Dataflow does with a job, on this machine: worker processes that have only what was staged run the graph.

`fresh_environment` makes their Python. As a program: execution.py pipeline.pb python, which exits 1 and prints the
error where the graph fails; it is started in an empty directory, so that no checkout is on anybody's path."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


def fresh_environment(directory: Path, wheels: Sequence[Path]) -> Path:
    """The Python of a new environment with these wheels; Beam and what else they need, it finds in this one's.

    What is installed here in editable form, as the checkout may be, it does not find."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True, timeout=60
    )
    python = directory / "bin/python"
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "here.pth").write_text(
        "".join(f"{path}\n" for path in sys.path if path.endswith("-packages"))
    )
    pip = [
        sys.executable,
        "-m",
        "pip",
        f"--python={python}",
        "install",
        "-q",
        "--no-deps",
        "--no-index",
    ]
    if wheels:
        subprocess.run([*pip, *map(str, wheels)], check=True, timeout=60)
    return python


@dataclass
class Story:
    """One conversion: the job as it was submitted, what was staged, how it went."""

    job: dict
    staged: dict[str, Path]
    python: Path  # of the workers
    ran: subprocess.CompletedProcess
    printed: str
    status: int

    @property
    def pool(self):
        return self.job["environment"]["workerPools"][0]

    @property
    def options(self):
        return self.job["environment"]["sdkPipelineOptions"]["options"]


def stage(gcs_server, job, directory):
    """Everything that the job names, as a worker fetches it."""
    environment = job["environment"]
    packages = environment["workerPools"][0]["packages"]
    urls = {
        package["name"]: package["location"].replace("storage.googleapis.com/", "gs://")
        for package in packages
    }
    urls["pipeline.pb"] = environment["sdkPipelineOptions"]["options"]["pipelineUrl"]
    for name, url in urls.items():
        (directory / name).write_bytes(gcs_server.read(*url.removeprefix("gs://").split("/", 1)))
    return {name: directory / name for name in urls}


def execute(staged, python, directory):
    """The submitted graph in workers of that Python."""
    command = [sys.executable, __file__, str(staged["pipeline.pb"]), str(python)]
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path.endswith("-packages"))
    directory.mkdir()
    return subprocess.run(
        command, cwd=directory, env=kept, capture_output=True, text=True, timeout=120, check=False
    )


def run(pipeline: Path, python: str) -> None:
    """Runs the graph in two processes of that Python."""
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.portability.api import beam_runner_api_pb2 as api
    from apache_beam.runners.portability.fn_api_runner import fn_runner

    graph = api.Pipeline.FromString(pipeline.read_bytes())
    for environment in graph.components.environments.values():
        environment.urn = "beam:env:harness_subprocess_python:v1"
        environment.payload = f"{python} -I -m apache_beam.runners.worker.sdk_worker_main".encode()
        del environment.dependencies[:]  # they are installed
    result = fn_runner.FnApiRunner().run_via_runner_api(
        graph, PipelineOptions(["--direct_num_workers=2"])
    )
    assert result.state == "DONE", result.state


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
