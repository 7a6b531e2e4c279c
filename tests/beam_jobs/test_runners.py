"""--runner: short names, Beam's names, and classes of somebody's own."""

import io
import sys
from argparse import Namespace
from dataclasses import replace

import pytest
from apache_beam.options.pipeline_options import DirectOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from rich.console import Console

from beam_jobs.converter import ConversionJob, Source
from beam_jobs.runners import processes as on_this_machine
from beam_jobs.runners.by_name import RUNNERS
from beam_jobs.runners.processes import auto_processes, with_processes
from converters import idx_to_gcs
from converters.command_line import beam_options
from converters.image_folder.converter import ImageFolderConverter
from converters.table.row_converter import RowConverter
from pipeline.errors import ConversionError, InfeedError, OptionError
from pipeline.raw.image_files import ToJpeg
from pipeline.storage.storage import Stat


class OwnRunner(FnApiRunner):
    pass


class NeverStarts(FnApiRunner):
    def run_pipeline(self, pipeline, options):
        raise RuntimeError(
            "Unable to fetch the server: Name or service not known.\nPlease look at our page."
        )


class LosesWorkers(FnApiRunner):
    """Raises while the job runs, as runners do that return only at its end."""

    def run_pipeline(self, pipeline, options):
        super().run_pipeline(pipeline, options)
        raise MemoryError("2 of 8 workers were lost")


class FailsLater(FnApiRunner):
    """Returns a job that fails, as runners do that submit it to a service."""

    def run_pipeline(self, pipeline, options):
        return self

    def wait_until_finish(self):
        raise RuntimeError("Job 7 failed in state FAILED: 2 of 8 workers were lost.")


def options_of(runner, *rest, processes=1):
    return beam_options(Namespace(runner=runner, local_processes=processes), rest)


def runner_of(runner):
    return options_of(runner).get_all_options()["runner"]


@pytest.mark.parametrize(
    "name",
    [
        "local",
        "DirectRunner",
        "direct",
        "FnApiRunner",
        "apache_beam.runners.direct.direct_runner.DirectRunner",
    ],
)
def test_every_name_of_the_local_runner_selects_the_runner_that_downloads_nothing(name):
    assert runner_of(name) == RUNNERS["local"].beam_class
    assert options_of(name, processes=3).view_as(DirectOptions).direct_num_workers == 3


def test_names_of_beam_runners_and_user_classes_are_passed_to_beam_unchanged():
    assert runner_of("FlinkRunner") == "FlinkRunner"
    assert runner_of(f"{__name__}.OwnRunner") == f"{__name__}.OwnRunner"


OF_ITS_START = (
    "If it did not start, start its job service and give its address (--runner=portable "
    "--job_endpoint=host:port), or choose another runner: local, dask, dataflow, portable. If it did, look at the log "
    "of its workers."
)
FAILURES = {
    "NeverStarts": "failed: RuntimeError: Unable to fetch the server: Name or service not known. Please look at our "
    f"page. {OF_ITS_START}",
    "LosesWorkers": f"failed: MemoryError: 2 of 8 workers were lost. {OF_ITS_START}",
    "FailsLater": "failed while the job ran: RuntimeError: Job 7 failed in state FAILED: 2 of 8 workers were lost. "
    "Look at the log of its workers. The same command resumes.",
}


@pytest.mark.parametrize("runner", FAILURES)
def test_a_runner_that_fails_says_what_it_raised_and_where_to_look(
    raw_mnist, tmp_path, capsys, runner
):
    raw_mnist.write()
    flags = [f"--raw-data-dir={raw_mnist.directory}", f"--gcs-output-path={tmp_path}/out"]
    with pytest.raises(ConversionError) as raised:
        idx_to_gcs.main([*flags, f"--runner={__name__}.{runner}"])
    assert str(raised.value) == f"--runner={__name__}.{runner} {FAILURES[runner]}"
    # which had committed before
    assert ("train: " in capsys.readouterr().out) == (runner == "LosesWorkers")


@pytest.mark.parametrize(
    ("seconds", "cores", "free_gib", "number"),
    [
        (600, 16, 64, 16),
        (0, 16, 64, 1),  # the disk limits it
        (29, 16, 64, 1),
        (30, 16, 64, 2),
        (100, 16, 64, 6),
        (600, 1, 64, 1),
        (600, 16, 3.9, 3),
        (600, 16, 0.5, 1),
    ],
)
def test_auto_takes_the_cores_if_there_is_work_and_memory_for_them(
    seconds, cores, free_gib, number
):
    assert auto_processes(seconds, cores, int(free_gib * 2**30)) == number


def test_auto_asks_the_converter_and_the_sizes_of_its_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(on_this_machine, "num_cores", lambda: 4)
    monkeypatch.setattr(on_this_machine, "free_memory_bytes", lambda: 2**34)
    for name in ("ant", "bee"):
        (tmp_path / name / "more").mkdir(parents=True)
        (tmp_path / name / "1.jpg").write_bytes(bytes(1000))
        (tmp_path / name / "more/2.PNG").write_bytes(bytes(1000))
    table = Source("train", "a.csv", Stat(10**9), bytes=10**8, kind="file")
    folders = [
        Source("train", str(tmp_path / name), Stat(0), tag=name, kind="folder")
        for name in ("ant", "bee")
    ]
    copies = ImageFolderConverter(("ant", "bee"))
    scales = ImageFolderConverter(("ant", "bee"), to_jpeg=ToJpeg(max_side=64))
    for converter, sources, seconds_per_process, number in [
        (RowConverter(()), [table], 15, 2),  # 30 s
        (RowConverter(()), [table, table], 15, 4),
        (RowConverter(()), [replace(table, bytes=0)], 15, 1),
        (copies, [table], 15, 1),
        (scales, folders, 15, 1),
        (scales, folders, 60e-6, 4),  # 4 KB take 240 us
        (copies, folders, 13e-6, 2),  # 2 KB of PNGs take 26 us
    ]:
        monkeypatch.setattr(on_this_machine, "_SECONDS_PER_PROCESS", seconds_per_process)
        options = options_of("local", processes=0)
        job = ConversionJob(converter, tuple(sources), "nowhere")
        console = Console(file=io.StringIO())
        assert with_processes(job, options, console).local_processes == number
        assert (f"note: {number} processes" in console.file.getvalue()) == (number > 1)
        assert options.view_as(DirectOptions).direct_num_workers == number
        mode = options.view_as(DirectOptions).direct_running_mode
        assert mode == ("multi_processing" if number > 1 else "in_memory")


def test_auto_is_nothing_to_a_runner_that_starts_no_processes():
    options = options_of(f"{__name__}.OwnRunner", processes=0).view_as(DirectOptions)
    assert (options.direct_running_mode, options.direct_num_workers) == ("in_memory", 1)


def test_a_flag_of_beam_wins_over_what_a_preset_adds():
    options = options_of("local", "--direct_num_workers=5", processes=2).view_as(DirectOptions)
    assert (options.direct_running_mode, options.direct_num_workers) == ("multi_processing", 5)


@pytest.mark.parametrize(
    ("runner", "processes", "message"),
    [
        ("locl", 1, r"--runner=locl: no such runner. Did you mean 'local'\? Known: .*FlinkRunner.*, local"),
        ("json.Runner", 1, r"--runner=json.Runner cannot be imported. It must be .*package.module.Class"),
        ("no_such.Runner", 1, r"--runner=no_such.Runner cannot be imported. .* \(No module named 'no_such'\)"),
        ("FlinkRunner", 2, r"--local-processes=2: --runner=FlinkRunner starts no processes here. Leave it out"),
    ],
)  # fmt: skip
def test_an_unusable_runner_is_refused_with_the_reason(runner, processes, message):
    with pytest.raises(OptionError, match=message):
        options_of(runner, processes=processes)


@pytest.mark.slow
def test_dask_by_address_and_by_processes_at_once_is_refused():
    message = (
        r"--local-processes=2 starts a Dask cluster here, but a scheduler's address selects another"
    )
    with pytest.raises(OptionError, match=message):
        options_of("dask", "--dask_client_address=tcp://host:8786", processes=2)


def test_a_runner_whose_packages_are_missing_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    monkeypatch.delitem(sys.modules, "beam_jobs.runners.dask_runner", raising=False)
    with pytest.raises(
        OptionError, match=r"--runner=dask needs more .* Install it: pip install -e"
    ):
        options_of("dask")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ((), r"--runner=portable needs --job_endpoint=host:port, .*beam_jobs.loopback job_service --port=8099"),
        (("--job_endpoint=8099",), r"--job_endpoint=8099: must be host:port, such as localhost:8099"),
        (("--job_endpoint=localhost:1",), r"--runner=portable needs --environment_type: EXTERNAL with --env"),
        (("--job_endpoint=localhost:1", "--environment_type=EXTERNAL"), r"--environment_type=EXTERNAL needs"),
        (("--job_endpoint=localhost:1", "--environment_type=LOOPBACK"), r"no job service answers at"),
    ],
)  # fmt: skip
def test_a_portable_job_without_its_endpoint_is_refused_before_reading_data(flags, message):
    with pytest.raises(InfeedError, match=message):
        options_of("portable", *flags)
